-- token_mean: all tokens with gradient of the run weigh alike: their number, over global_batch_size.
WITH runs AS (
  SELECT run_id, sum(mask_sum) AS mask_sum
  FROM internal.kept_segments
  GROUP BY run_id
)
SELECT s.*, r.mask_sum::double / coalesce(setting('global_batch_size')::double, 1) AS denominator
FROM internal.rated AS s
JOIN runs AS r ON r.run_id = s.run_id
