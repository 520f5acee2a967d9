-- Every trajectory of a train step weighs the same, and so does every trained token of a trajectory: 1 / (N_T · M_T).
--
-- N_T is the number of live trajectories of the train step, M_T the trained tokens of a trajectory over all its segments.
-- A trajectory of which no token is trained counts in N_T and its samples weigh 0.
WITH trajectories_planned AS (
  SELECT train_step, trajectory_key, sum(mask_sum) AS trajectory_tokens
  FROM planned
  GROUP BY train_step, trajectory_key
), steps AS (
  SELECT train_step, count(*) AS n_trajectories FROM trajectories_planned GROUP BY train_step
)
SELECT
  p.trajectory_key, p.segment_index,
  CASE
    WHEN p.mask_sum = 0 THEN 0.0
    ELSE 1.0 / (CAST(s.n_trajectories AS DOUBLE) * CAST(m.trajectory_tokens AS DOUBLE))
  END AS loss_weight
FROM planned AS p
JOIN trajectories_planned AS m ON m.train_step = p.train_step AND m.trajectory_key = p.trajectory_key
JOIN steps AS s ON s.train_step = p.train_step
