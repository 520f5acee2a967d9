-- Leave one out, of rewards clipped to [-1, 1]: a grader's outlier counts no more than a plain success or failure.
WITH clipped AS (
  SELECT trajectory_id, run_id, group_id, greatest(-1, least(1, reward)) AS reward
  FROM anchors
), compared AS (
  SELECT run_id, group_id, count(*) AS n, exact_mean(reward) AS mean
  FROM clipped
  GROUP BY run_id, group_id
)
SELECT
  r.trajectory_id, r.run_id,
  CASE WHEN c.n > 1 THEN (r.reward - c.mean) * c.n / (c.n - 1) ELSE 0 END AS advantage
FROM clipped AS r
JOIN compared AS c ON c.run_id = r.run_id AND c.group_id = r.group_id
