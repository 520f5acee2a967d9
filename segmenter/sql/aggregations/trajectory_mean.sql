-- trajectory_mean: trajectories weigh alike, and so do the tokens of a trajectory: M_T, its tokens with gradient over all
-- its segments.
WITH owners AS (
  SELECT trajectory_key, sum(mask_sum) AS mask_sum
  FROM internal.kept_segments
  GROUP BY trajectory_key
)
SELECT s.*, o.mask_sum::double AS denominator
FROM internal.rated AS s
JOIN owners AS o ON o.trajectory_key = s.trajectory_key
