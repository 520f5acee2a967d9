-- Trajectories as training sees them: the reward that counts, and why one has no samples whatever its group is like.
--
-- reason  aborted, failed, ungraded or version_span; null for a live, graded trajectory
-- stale   whether it makes its group stale; only with staleness_keep_versions
SELECT
  trajectory_key, write_id, trajectory_id, run_id, instance_id, group_id, status,
  n_segments, n_tokens, n_trained_tokens,
  CASE WHEN setting('null_reward') = 'zero' THEN coalesce(reward, 0) ELSE reward END AS reward,
  CASE
    WHEN status IN ('aborted', 'failed') THEN status
    WHEN reward IS NULL AND setting('null_reward') = 'exclude' THEN 'ungraded'
  END AS reason,
  false AS stale
FROM trajectories
