-- Who a plan has no samples of, or fewer tokens of, by reason.
WITH trajectories_dropped AS (
  -- a trajectory may have several segments with one reason
  SELECT reason, has_samples, run_id, group_id, trajectory_key, sum(n_lost_tokens) AS n_lost_tokens
  FROM drops
  GROUP BY reason, has_samples, run_id, group_id, trajectory_key
), groups_dropped AS (
  SELECT reason, has_samples, run_id, group_id, count(*) AS n_trajectories, sum(n_lost_tokens) AS n_lost_tokens
  FROM trajectories_dropped
  GROUP BY reason, has_samples, run_id, group_id
)
SELECT
  reason, has_samples, sum(n_trajectories) AS n_trajectories, count(*) AS n_groups,
  coalesce(sum(n_lost_tokens), 0) AS n_lost_tokens
FROM groups_dropped
GROUP BY reason, has_samples
ORDER BY has_samples, n_trajectories DESC, reason
