-- One interaction a row, the copy that is in force: `reward` is the one that came with it (null is ungraded, not 0).
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
SELECT
  t.trajectory_id, t.run_id, t.instance_id, t.group_id, t.status,
  t.recorded_reward AS reward, t.recorded_reward,
  t.n_steps, t.n_segments, t.n_messages, t.n_tokens, t.n_trained_tokens,
  t.model, t.agent, t.format, t.source, t.created_at, t.parent_trajectory_id,
  t.flags, t.labels, t.extra, t.revision, t.extent, t.content_hash, t.trajectory_key, t.write_id
FROM stored.trajectories AS t
WHERE setting('run') IS NULL OR t.run_id = setting('run')
