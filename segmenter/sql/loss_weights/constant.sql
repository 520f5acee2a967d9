-- Every trained token weighs the same in every train step, however long the samples are: 1 / (N_T · c), as Dr. GRPO has it.
--
-- N_T is the number of live trajectories of the train step, c the number in `loss_aggregation` (constant:4096), else
-- max_segment_tokens. A sample of which no token is trained weighs 0.
WITH steps AS (
  SELECT train_step, count(DISTINCT trajectory_key) AS n_trajectories FROM planned GROUP BY train_step
)
SELECT
  p.trajectory_key, p.segment_index,
  CASE
    WHEN p.mask_sum = 0 THEN 0.0
    ELSE 1.0 / (CAST(s.n_trajectories AS DOUBLE) * setting('loss_constant')::double)
  END AS loss_weight
FROM planned AS p
JOIN steps AS s ON s.train_step = p.train_step
