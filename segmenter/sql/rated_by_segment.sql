-- Segments that are trained on, each with its own advantage: for an estimator that gives one a segment.
SELECT s.*, e.advantage
FROM internal.kept_segments AS s
JOIN internal.advantages AS e ON e.trajectory_key = s.trajectory_key AND e.segment_index = s.segment_index
