-- One segment a row: steps of one lineage whose tokens form one append-only sequence, from one boundary to the next.
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
WITH own AS (
  SELECT
    trajectory_key, write_id, segment_index, trajectory_id, run_id, instance_id, group_id, status,
    min(lineage_index) AS lineage_index, min(step_index) AS first_step, max(step_index) AS last_step,
    count(*) AS n_steps, sum(n_context_tokens) AS n_context_tokens, sum(n_output_tokens) AS n_output_tokens,
    sum(mask_sum(mask_spans)) AS n_trained_tokens, sum(cardinality(messages)) AS n_messages,
    bool_and(trainable) AS trainable,
    last_value(finish_reason ORDER BY step_index) AS finish_reason,
    first_value(boundary_reasons ORDER BY step_index) AS reasons,
    last_value(model ORDER BY step_index) AS model,
    first_value(weight_version ORDER BY step_index) AS first_weight_version,
    last_value(weight_version ORDER BY step_index) AS last_weight_version,
    min(created_at) AS created_at
  FROM internal.numbered_steps
  GROUP BY trajectory_key, write_id, segment_index, trajectory_id, run_id, instance_id, group_id, status
)
SELECT
  trajectory_id, run_id, instance_id, group_id, status, segment_index,
  segment_index = max(segment_index) OVER (PARTITION BY trajectory_key, write_id) AS is_anchor,
  lineage_index, first_step, last_step, n_steps, n_context_tokens + n_output_tokens AS n_tokens,
  n_context_tokens, n_output_tokens, n_trained_tokens, n_messages, trainable, finish_reason,
  coalesce(finish_reason = 'length', false) AS truncated, reasons, model,
  first_weight_version, last_weight_version, created_at, trajectory_key, write_id
FROM own
