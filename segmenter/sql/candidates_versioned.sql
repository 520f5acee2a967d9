-- Trajectories as training sees them, where weight versions have a say (staleness_keep_versions, max_version_span).
--
-- A trajectory is as old as the last token with gradient of its last segment. It is stale if those weights are not among
-- the last staleness_keep_versions versions of its run, in order of first observation. It spans as many versions as
-- produced its tokens with gradient.
--
-- reason  aborted, failed, ungraded or version_span; null for a live, graded trajectory
-- stale   whether it makes its group stale
WITH ends AS (
  SELECT trajectory_key, last_value(last_weight_version ORDER BY segment_index) AS weight_version
  FROM segments
  GROUP BY trajectory_key
), spans AS (
  SELECT trajectory_key, count(DISTINCT weight_version) AS n_versions
  FROM (SELECT trajectory_key, unnest(trained_versions) AS weight_version FROM segments)
  GROUP BY trajectory_key
), aged AS (
  SELECT
    t.trajectory_key, t.write_id, t.trajectory_id, t.run_id, t.instance_id, t.group_id, t.status,
    t.n_segments, t.n_tokens, t.n_trained_tokens,
    CASE WHEN setting('null_reward') = 'zero' THEN coalesce(t.reward, 0) ELSE t.reward END AS reward,
    CASE
      WHEN t.status IN ('aborted', 'failed') THEN t.status
      WHEN t.reward IS NULL AND setting('null_reward') = 'exclude' THEN 'ungraded'
      WHEN s.n_versions > setting('max_version_span')::bigint THEN 'version_span'
    END AS reason,
    coalesce(o.version_lag >= setting('staleness_keep_versions')::bigint, false) AS is_old
  FROM trajectories AS t
  LEFT JOIN ends AS e ON e.trajectory_key = t.trajectory_key
  LEFT JOIN spans AS s ON s.trajectory_key = t.trajectory_key
  LEFT JOIN internal.observed_versions AS o ON o.run_id = t.run_id AND o.weight_version = e.weight_version
)
SELECT
  trajectory_key, write_id, trajectory_id, run_id, instance_id, group_id, status,
  n_segments, n_tokens, n_trained_tokens, reward, reason, reason IS NULL AND is_old AS stale
FROM aged
