-- What is not trained on, and why: a row for each trajectory or segment, and each reason. Nothing leaves silently.
--
-- The tokens with gradient that were recorded are those of samples (mask_sum) and those of drops (n_lost_tokens).
--
-- run_id          the run
-- group_id        the group
-- instance_id     the task or prompt
-- trajectory_id   the recorder's id
-- segment_index   the segment; null where it is the whole trajectory
-- reason          see docs/training-semantics.md
-- has_samples     false: left out; true: in samples, but without effect or with fewer tokens
-- n_lost_tokens   tokens with gradient that are lost to this reason
-- trajectory_key  integer key that joins the tables
WITH judged AS (
  SELECT
    c.run_id, c.group_id, c.instance_id, c.trajectory_id, c.trajectory_key, c.n_trained_tokens,
    coalesce(
      c.reason,
      g.drop_reason,
      CASE WHEN k.trajectory_key IS NULL THEN 'filtered' WHEN c.n_segments = 0 THEN 'no_segments' END
    ) AS drop_reason,
    CASE
      WHEN NOT g.zero_variance OR setting('rewards_normalization') = 'false' THEN NULL
      WHEN setting('estimator') NOT IN ('grpo', 'gspo', 'rloo', 'dr_grpo', 'reinforce_plus_plus_baseline') THEN NULL
      WHEN g.n_graded = 1 THEN 'group_of_one'
      ELSE 'zero_variance'
    END AS no_effect
  FROM internal.candidates AS c
  JOIN groups AS g ON g.run_id = c.run_id AND g.group_id = c.group_id
  LEFT JOIN internal.kept AS k ON k.trajectory_key = c.trajectory_key
), parts AS (
  SELECT
    s.run_id, s.group_id, s.instance_id, s.trajectory_id, s.trajectory_key, s.segment_index,
    s.trainable, s.n_cut_tokens, s.n_older_tokens,
    unnest(make_array(
      CASE WHEN s.trainable THEN NULL WHEN s.n_recorded_tokens = 0 THEN 'no_token_ids' ELSE 'untrainable' END,
      CASE WHEN s.n_cut_tokens > 0 THEN 'token_cap' END,
      CASE WHEN s.n_older_tokens > 0 THEN 'older_version' END,
      CASE WHEN s.trainable AND s.mask_sum = 0 THEN 'all_masked' END
    )) AS reason
  FROM segments AS s
  JOIN internal.kept AS k ON k.trajectory_key = s.trajectory_key
)
SELECT
  run_id, group_id, instance_id, trajectory_id, NULL::int AS segment_index,
  coalesce(drop_reason, no_effect) AS reason, drop_reason IS NULL AS has_samples,
  CASE WHEN drop_reason IS NULL THEN 0 ELSE n_trained_tokens END AS n_lost_tokens, trajectory_key
FROM judged
WHERE drop_reason IS NOT NULL OR no_effect IS NOT NULL
UNION ALL
SELECT
  run_id, group_id, instance_id, trajectory_id, segment_index, reason, trainable,
  CASE reason WHEN 'token_cap' THEN n_cut_tokens WHEN 'older_version' THEN n_older_tokens ELSE 0 END, trajectory_key
FROM parts
WHERE reason IS NOT NULL
