-- Versions of the policy, in order of first observation: `position` counts 0, 1, 2, … within a run.
--
-- run_id          the run
-- weight_version  the version as the engine names it
-- position        its place in the run, without gaps
-- ordinal         the stored order
-- first_seen_at   when it was first committed
WITH first_seen AS (
  -- two writers that saw a version at the same time may both have stored it
  SELECT run_id, weight_version, min(ordinal) AS ordinal, min(first_seen_at) AS first_seen_at
  FROM stored.weight_versions
  WHERE setting('run') IS NULL OR run_id = setting('run')
  GROUP BY run_id, weight_version
)
SELECT
  run_id, weight_version,
  arrow_cast(row_number() OVER (
    PARTITION BY run_id ORDER BY ordinal, first_seen_at, weight_version
  ), 'Int64') - 1 AS position,
  ordinal, first_seen_at
FROM first_seen
