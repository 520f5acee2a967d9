-- One live, graded trajectory a row: what an estimator compares.
--
-- trajectory_id     the recorder's id
-- run_id            the run
-- instance_id       the task or prompt
-- group_id          trajectories whose rewards are compared with each other
-- reward            the reward that counts
-- n_segments        segments
-- n_tokens          tokens, before the cap
-- n_trained_tokens  of them with gradient
-- trajectory_key    integer key that joins the tables
-- write_id          the attempt that wrote it
SELECT
  trajectory_id, run_id, instance_id, group_id, reward, n_segments, n_tokens, n_trained_tokens,
  trajectory_key, write_id
FROM internal.candidates
WHERE reason IS NULL
