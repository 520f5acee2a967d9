-- How samples become train steps: one row a plan, as `dressage plan` stored it.
--
-- plan_id        hash of what the plan is a function of: versions, SQL, settings, seed
-- created_at     when it was stored
-- run_id         the run it was made for; NULL for all runs of the store
-- snapshot_id    the tagged snapshot that it pins
-- world_size     data-parallel ranks
-- n_train_steps  train steps
-- n_samples      samples, over all train steps
-- n_tokens       their tokens
-- seed           the seed of the order
-- after_plan_id  the plan that this one goes on from
-- sql_hash       hash of all SQL that was in force
-- settings       JSON object: setting to value
-- versions       JSON object: table name to version
-- summary        JSON object: packing efficiency, rank spread, what was left out
-- sql            JSON object: name of a view or file to its text
-- plan_write_id  the attempt that wrote it
WITH attempts AS (
  -- two planners that made the same plan at the same time may both have stored it; their rows say the same
  SELECT *, row_number() OVER (PARTITION BY plan_id ORDER BY created_at, plan_write_id) AS attempt
  FROM stored.plans
  WHERE setting('run') IS NULL OR run_id = setting('run')
)
SELECT
  plan_id, created_at, run_id, snapshot_id, world_size, n_train_steps, n_samples, n_tokens, seed, after_plan_id,
  sql_hash, settings, versions, summary, sql, plan_write_id
FROM attempts
WHERE attempt = 1
