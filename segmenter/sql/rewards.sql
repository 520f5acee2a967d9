-- One grader's verdict a row, of the trajectories in force; which one counts is in trajectories.reward.
--
-- trajectory_id   the recorder's id
-- run_id          the run
-- instance_id     the task or prompt
-- group_id        the group of its trajectory
-- grader          who graded
-- stage           recorded for a verdict that came with its trajectory
-- value           the scalar; null is no verdict, not 0
-- parts           JSON object of named parts; read with json_get(parts, 'key')
-- graded_at       when it was graded
-- visible_at      when it was committed
-- detail          the verdict as it came
-- trajectory_key  integer key that joins the tables
SELECT
  t.trajectory_id, t.run_id, t.instance_id, t.group_id, r.grader, r.stage, r.value, r.parts, r.graded_at,
  r.visible_at, r.detail, t.trajectory_key
FROM stored.trajectories AS t
JOIN stored.rewards AS r ON t.trajectory_key = r.trajectory_key
WHERE (r.write_id IS NULL OR r.write_id = t.write_id)
  AND (setting('run') IS NULL OR t.run_id = setting('run'))
