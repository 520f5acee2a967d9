-- Real weight versions of a run, and how many were first observed after each: 0 is the newest.
SELECT
  run_id, weight_version,
  arrow_cast(row_number() OVER (PARTITION BY run_id ORDER BY position DESC), 'Int64') - 1 AS version_lag
FROM weight_versions
WHERE is_real_version(weight_version)
