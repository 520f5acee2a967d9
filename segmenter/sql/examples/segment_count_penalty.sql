-- The advantage of grpo, of rewards that cost 0.05 for every segment beyond the first: a rollout that restarts its
-- context often must earn it.
WITH penalised AS (
  SELECT trajectory_key, run_id, group_id, reward - 0.05 * (n_segments - 1) AS reward
  FROM anchors
), compared AS (
  SELECT run_id, group_id, exact_mean(reward) AS mean, exact_std(reward) AS std
  FROM penalised
  GROUP BY run_id, group_id
)
SELECT
  p.trajectory_key,
  CASE WHEN c.std > 1e-6 THEN (p.reward - c.mean) / c.std ELSE p.reward - c.mean END AS advantage
FROM penalised AS p
JOIN compared AS c ON c.run_id = p.run_id AND c.group_id = p.group_id
