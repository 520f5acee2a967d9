-- One interaction a row, the copy that is in force: `reward` is the last verdict of the chosen grader (null is ungraded).
--
-- trajectory_id         the recorder's id
-- run_id                the run, chosen at ingest
-- instance_id           the task or prompt
-- group_id              trajectories whose rewards are compared with each other
-- status                completed, truncated, aborted or failed
-- reward                the reward in force: of the chosen grader (--set grader=…), else the recorded one
-- recorded_reward       the reward that came with the trajectory
-- n_steps               model calls; null where the source gave whole segments
-- n_segments            segments
-- n_messages            messages, each step's own
-- n_tokens              tokens, each step's own
-- n_trained_tokens      tokens that receive gradient
-- model                 the policy's name
-- agent                 the harness
-- format                the importer that read it
-- source                the file it came from
-- created_at            when it began
-- parent_trajectory_id  the trajectory that spawned it
-- flags                 what is odd about it
-- labels                JSON object of labels; read with json_get(labels, 'key')
-- extra                 JSON object of keys without a column
-- revision              0 for the first copy, then counting up
-- extent                how much of the interaction this copy holds
-- content_hash          hash of what it says
-- trajectory_key        integer key that joins the tables
-- write_id              the attempt that wrote it
WITH verdicts AS (
  -- verdicts that came with a copy count only where that copy is in force; without a grader chosen, later verdicts
  -- fill in where nothing was recorded
  SELECT r.trajectory_key, last_value(r.value ORDER BY r.graded_at ASC NULLS FIRST, r.visible_at ASC) AS value
  FROM stored.trajectories AS t
  JOIN stored.rewards AS r ON t.trajectory_key = r.trajectory_key
  WHERE (r.write_id IS NULL OR r.write_id = t.write_id)
    AND ((setting('grader') IS NULL AND r.stage <> 'recorded') OR r.grader = setting('grader'))
  GROUP BY r.trajectory_key
)
SELECT
  t.trajectory_id, t.run_id, t.instance_id, t.group_id, t.status,
  CASE WHEN setting('grader') IS NULL THEN coalesce(t.recorded_reward, v.value) ELSE v.value END AS reward,
  t.recorded_reward,
  t.n_steps, t.n_segments, t.n_messages, t.n_tokens, t.n_trained_tokens,
  t.model, t.agent, t.format, t.source, t.created_at, t.parent_trajectory_id,
  t.flags, t.labels, t.extra, t.revision, t.extent, t.content_hash, t.trajectory_key, t.write_id
FROM stored.trajectories AS t
LEFT JOIN verdicts AS v ON v.trajectory_key = t.trajectory_key
WHERE setting('run') IS NULL OR t.run_id = setting('run')
