-- Every sample (segment) of a train step weighs the same, and so does every trained token of it: 1 / (N_S · m).
--
-- N_S is the number of samples of the train step, m the trained tokens of a sample. A sample of which no token is trained
-- counts in N_S and weighs 0.
WITH steps AS (
  SELECT train_step, count(*) AS n_samples FROM planned GROUP BY train_step
)
SELECT
  p.trajectory_key, p.segment_index,
  CASE
    WHEN p.mask_sum = 0 THEN 0.0
    ELSE 1.0 / (CAST(s.n_samples AS DOUBLE) * CAST(p.mask_sum AS DOUBLE))
  END AS loss_weight
FROM planned AS p
JOIN steps AS s ON s.train_step = p.train_step
