-- Segments that are trained on: those of the trajectories that are kept, as far as their tokens can be trained on.
SELECT s.*, k.reward
FROM segments AS s
JOIN internal.kept AS k ON k.trajectory_key = s.trajectory_key
WHERE s.trainable
