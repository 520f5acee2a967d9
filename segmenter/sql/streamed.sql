-- Micro-batches as they were first given out: the hash that a replay is compared with.
--
-- plan_id       the plan
-- train_step    0, 1, 2, …
-- dp_rank       the data-parallel rank
-- micro_batch   0, 1, 2, … within (train_step, dp_rank)
-- n_samples     its samples
-- n_tokens      their tokens
-- content_hash  hash over the values of its columns but router choices
-- experts_hash  hash over its router choices; null where they were not streamed
-- streamed_at   when
WITH times AS (
  SELECT
    *,
    row_number() OVER (
      PARTITION BY plan_id, train_step, dp_rank, micro_batch ORDER BY streamed_at, content_hash
    ) AS time,
    first_value(experts_hash) IGNORE NULLS OVER (
      PARTITION BY plan_id, train_step, dp_rank, micro_batch ORDER BY streamed_at, content_hash
      ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    ) AS first_experts_hash
  FROM stored.streamed
)
SELECT plan_id, train_step, dp_rank, micro_batch, n_samples, n_tokens, content_hash,
  first_experts_hash AS experts_hash, streamed_at
FROM times
WHERE time = 1 AND plan_id IN (SELECT plan_id FROM plans)
