-- One segment a row: steps of one lineage whose tokens form one append-only sequence; here as the source gave them.
--
-- trajectory_id         the recorder's id
-- run_id                the run
-- instance_id           the task or prompt
-- group_id              the group of its trajectory
-- status                how the trajectory ended
-- segment_index         0-based, within the trajectory
-- is_anchor             whether it has the highest segment_index: it carries the terminal reward
-- lineage_index         the chain of steps it is a part of
-- first_step            step_index of its first step
-- last_step             step_index of its last step
-- n_steps               steps
-- n_tokens              tokens, as a trainer sees them
-- n_context_tokens      of them context
-- n_output_tokens       of them generated
-- n_trained_tokens      of them with gradient
-- n_messages            messages
-- trainable             whether every step is
-- finish_reason         of the last step
-- truncated             whether that is length
-- reasons               why it began
-- model                 the policy's name
-- first_weight_version  the weights that answered first
-- last_weight_version   the weights that answered last
-- created_at            when its first call was made
-- trajectory_key        integer key that joins the tables
-- write_id              the attempt that wrote it
SELECT
  trajectory_id, run_id, instance_id, group_id, status, segment_index,
  segment_index = max(segment_index) OVER (PARTITION BY trajectory_key, write_id) AS is_anchor,
  lineage_index, step_index AS first_step, step_index AS last_step, 1 AS n_steps,
  n_context_tokens + n_output_tokens AS n_tokens, n_context_tokens, n_output_tokens,
  mask_sum(mask_spans) AS n_trained_tokens, cardinality(messages) AS n_messages, trainable, finish_reason,
  coalesce(finish_reason = 'length', false) AS truncated, boundary_reasons AS reasons, model,
  weight_version AS first_weight_version, weight_version AS last_weight_version, created_at, trajectory_key, write_id
FROM internal.numbered_steps
