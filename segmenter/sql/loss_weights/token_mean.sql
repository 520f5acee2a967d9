-- Every trained token of a train step weighs the same: 1 / Σm, over all samples of the train step.
--
-- A sample of which no token is trained weighs 0.
WITH steps AS (
  SELECT train_step, sum(mask_sum) AS step_tokens FROM planned GROUP BY train_step
)
SELECT
  p.trajectory_key, p.segment_index,
  CASE WHEN p.mask_sum = 0 THEN 0.0 ELSE 1.0 / CAST(s.step_tokens AS DOUBLE) END AS loss_weight
FROM planned AS p
JOIN steps AS s ON s.train_step = p.train_step
