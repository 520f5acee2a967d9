-- dr_grpo: the reward minus its group's mean, never divided by a deviation, which would favour easy and hard prompts.
SELECT
  a.trajectory_key,
  CASE WHEN setting('rewards_normalization') = 'false' THEN a.reward ELSE a.reward - g.reward_mean END AS advantage
FROM anchors AS a
JOIN groups AS g ON g.run_id = a.run_id AND g.group_id = a.group_id
