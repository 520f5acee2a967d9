-- grpo: the reward minus its group's mean, over the group's population deviation where that is above 1e-6.
SELECT
  a.trajectory_key,
  CASE
    WHEN setting('rewards_normalization') = 'false' THEN a.reward
    WHEN setting('grpo_std_normalization') = 'true' AND g.reward_std > 1e-6
      THEN (a.reward - g.reward_mean) / g.reward_std
    ELSE a.reward - g.reward_mean
  END AS advantage
FROM anchors AS a
JOIN groups AS g ON g.run_id = a.run_id AND g.group_id = a.group_id
