-- One segment that is trained on a row: what a trainer's batch is made of. Drops says what is left out.
--
-- trajectory_id         the recorder's id
-- run_id                the run
-- instance_id           the task or prompt
-- group_id              trajectories whose rewards are compared with each other
-- segment_index         0-based, within the trajectory
-- is_anchor             whether it carries the terminal reward
-- n_tokens              tokens, after the cap
-- response_start        tokens before the first one with gradient
-- response_length       tokens from there to the end
-- mask_sum              tokens that receive gradient
-- raw_reward            the trajectory's reward on its anchor, 0 on its other segments
-- advantage             of its trajectory, on every segment
-- denominator           what the summed token loss is divided by; the weight in a full train step is 1 / (denominator · global_batch_size)
-- truncated             whether generation ended for length
-- finish_reason         of the last step
-- first_weight_version  the weights that produced the first token with gradient
-- last_weight_version   the weights that produced the last one
-- version_lag           how many versions of its run were first observed after last_weight_version
-- lineage_index         the chain of steps it is a part of
-- first_step            step_index of its first step
-- last_step             step_index of its last step
-- n_steps               steps
-- n_recorded_tokens     tokens before the cap
-- trajectory_key        integer key that joins the tables
-- write_id              the attempt that wrote it
SELECT
  s.trajectory_id, s.run_id, s.instance_id, s.group_id, s.segment_index, s.is_anchor,
  s.n_tokens, s.response_start, s.response_length, s.mask_sum,
  CASE WHEN s.is_anchor THEN s.reward ELSE 0 END AS raw_reward, s.advantage, s.denominator,
  s.truncated, s.finish_reason, s.first_weight_version, s.last_weight_version, o.version_lag,
  s.lineage_index, s.first_step, s.last_step, s.n_steps, s.n_recorded_tokens, s.trajectory_key, s.write_id
FROM internal.weighed AS s
LEFT JOIN internal.observed_versions AS o ON o.run_id = s.run_id AND o.weight_version = s.last_weight_version
