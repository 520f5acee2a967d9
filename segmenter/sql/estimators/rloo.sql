-- rloo: the reward minus the mean reward of the others of its group; 0 in a group of one, which has no others.
SELECT
  a.trajectory_key,
  CASE
    WHEN setting('rewards_normalization') = 'false' THEN a.reward
    WHEN g.n_graded > 1 THEN (a.reward - g.reward_mean) * g.n_graded / (g.n_graded - 1)
    ELSE 0
  END AS advantage
FROM anchors AS a
JOIN groups AS g ON g.run_id = a.run_id AND g.group_id = a.group_id
