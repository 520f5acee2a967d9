-- The centred reward, discounted by 0.9 for every segment between a segment and its trajectory's last one: what came
-- shortly before the verdict is credited most. One row a segment, so there is a segment_index.
WITH ends AS (
  SELECT trajectory_key, max(segment_index) AS last_segment
  FROM segments
  GROUP BY trajectory_key
)
SELECT
  s.trajectory_key, s.segment_index,
  (a.reward - g.reward_mean) * power(0.9, e.last_segment - s.segment_index) AS advantage
FROM segments AS s
JOIN anchors AS a ON a.trajectory_key = s.trajectory_key
JOIN groups AS g ON g.run_id = a.run_id AND g.group_id = a.group_id
JOIN ends AS e ON e.trajectory_key = s.trajectory_key
