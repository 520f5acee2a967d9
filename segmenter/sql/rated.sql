-- Segments that are trained on, each with the advantage of its trajectory.
SELECT s.*, e.advantage
FROM internal.kept_segments AS s
JOIN internal.advantages AS e ON e.trajectory_key = s.trajectory_key
