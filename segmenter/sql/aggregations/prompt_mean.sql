-- prompt_mean: prompts weigh alike, and so do the tokens of a prompt. With N_P prompts and M_P tokens with gradient of
-- this one, over the whole run: M_P · N_P / global_batch_size.
WITH prompts AS (
  SELECT run_id, instance_id, sum(mask_sum) AS mask_sum
  FROM internal.kept_segments
  GROUP BY run_id, instance_id
), counted AS (
  SELECT run_id, instance_id, mask_sum, count(*) OVER (PARTITION BY run_id) AS n_prompts
  FROM prompts
)
SELECT
  s.*,
  p.mask_sum::double * p.n_prompts::double / coalesce(setting('global_batch_size')::double, 1) AS denominator
FROM internal.rated AS s
JOIN counted AS p ON p.run_id = s.run_id AND p.instance_id = s.instance_id
