-- One live, graded trajectory a row, of a group that is not dropped as a whole: what an estimator compares.
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
  c.trajectory_id, c.run_id, c.instance_id, c.group_id, c.reward, c.n_segments, c.n_tokens, c.n_trained_tokens,
  c.trajectory_key, c.write_id
FROM internal.candidates AS c
JOIN groups AS g ON g.run_id = c.run_id AND g.group_id = c.group_id
WHERE c.reason IS NULL AND g.drop_reason IS NULL
