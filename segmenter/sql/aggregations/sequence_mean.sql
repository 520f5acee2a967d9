-- sequence_mean: samples weigh alike, and so do the tokens of a sample. With N_S samples of the run and m tokens with
-- gradient of this one: m · N_S / global_batch_size.
WITH runs AS (
  SELECT run_id, count(*) AS n_samples
  FROM internal.kept_segments
  GROUP BY run_id
)
SELECT
  s.*,
  s.mask_sum::double * r.n_samples::double / coalesce(setting('global_batch_size')::double, 1) AS denominator
FROM internal.rated AS s
JOIN runs AS r ON r.run_id = s.run_id
