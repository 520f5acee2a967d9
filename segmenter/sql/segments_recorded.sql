-- One segment a row: steps of one lineage whose tokens form one append-only sequence, from one boundary to the next.
--
-- trajectory_id         the recorder's id
-- run_id                the run
-- instance_id           the task or prompt
-- group_id              the group of its trajectory
-- status                how the trajectory ended
-- segment_index         0-based, within the trajectory
-- is_anchor             whether it carries the terminal reward: the last one, or with anchor_rule=main_lineage the last of the first lineage
-- lineage_index         the chain of steps it is a part of
-- first_step            step_index of its first step
-- last_step             step_index of its last step
-- n_steps               steps
-- steps                 their step_index, in order
-- n_tokens              tokens, as a trainer sees them: the first max_segment_tokens
-- n_recorded_tokens     tokens before that cap
-- n_context_tokens      of the recorded ones context
-- n_output_tokens       of the recorded ones generated
-- response_start        tokens before the first one with gradient
-- response_length       tokens from there to the end
-- mask_sum              tokens that receive gradient, after cap and version masking
-- n_trained_tokens      recorded tokens with gradient: mask_sum + n_cut_tokens + n_older_tokens
-- n_cut_tokens          of them beyond the cap
-- n_older_tokens        of them masked, because older weights produced them
-- mask_spans            the loss mask as run lengths, after cap and version masking
-- n_messages            messages
-- trainable             whether a step with tokens can be trained on
-- finish_reason         of the last step
-- truncated             whether that is length; a cut by the cap does not count
-- reasons               why it began
-- model                 the policy's name
-- first_weight_version  the weights that produced the first token with gradient
-- last_weight_version   the weights that produced the last one (both after the cap)
-- trained_versions      all weights that produced tokens with gradient
-- created_at            when its first call was made
-- trajectory_key        integer key that joins the tables
-- write_id              the attempt that wrote it
WITH own AS (
  SELECT
    trajectory_key, write_id, segment_index, trajectory_id, run_id, instance_id, group_id, status,
    min(lineage_index) AS lineage_index, min(step_index) AS first_step, max(step_index) AS last_step,
    count(*) AS n_steps, array_agg(step_index ORDER BY step_index) AS steps,
    sum(n_step_tokens) AS n_recorded_tokens,
    sum(n_context_tokens) AS n_context_tokens, sum(n_output_tokens) AS n_output_tokens,
    sum(cardinality(messages)) AS n_messages,
    bool_or(trainable AND n_step_tokens > 0) AS has_gradient,
    join_masks(mask_spans, trainable, step_index) AS joined_spans,
    join_versions(version_spans, weight_version, n_step_tokens, step_index) AS version_spans,
    bool_or(mask_nonlast_version) AS mask_nonlast_version,
    last_value(finish_reason ORDER BY step_index) AS finish_reason,
    first_value(boundary_reasons ORDER BY step_index) AS reasons,
    last_value(model ORDER BY step_index) AS model,
    min(created_at) AS created_at
  FROM internal.numbered_steps
  GROUP BY trajectory_key, write_id, segment_index, trajectory_id, run_id, instance_id, group_id, status
), cut AS (
  SELECT
    *, least(n_recorded_tokens, setting('max_segment_tokens')::bigint) AS n_tokens,
    mask_cap(joined_spans, setting('max_segment_tokens')::bigint) AS cut_spans
  FROM own
), trained AS (
  SELECT *, train_mask(cut_spans, version_spans, mask_nonlast_version) AS train_spans
  FROM cut
)
SELECT
  trajectory_id, run_id, instance_id, group_id, status, segment_index,
  segment_index = first_value(segment_index) OVER (
    PARTITION BY trajectory_key, write_id
    ORDER BY CASE WHEN setting('anchor_rule') = 'main_lineage' THEN lineage_index ELSE 0 END, segment_index DESC
  ) AS is_anchor,
  lineage_index, first_step, last_step, n_steps, steps,
  n_tokens, n_recorded_tokens, n_context_tokens, n_output_tokens,
  mask_start(cut_spans) AS response_start, n_tokens - mask_start(cut_spans) AS response_length,
  mask_sum(train_spans) AS mask_sum, mask_sum(joined_spans) AS n_trained_tokens,
  mask_sum(joined_spans) - mask_sum(cut_spans) AS n_cut_tokens,
  mask_sum(cut_spans) - mask_sum(train_spans) AS n_older_tokens,
  train_spans AS mask_spans, n_messages, has_gradient AS trainable, finish_reason,
  coalesce(finish_reason = 'length', false) AS truncated, reasons, model,
  first_trained_version(cut_spans, version_spans, null) AS first_weight_version,
  last_trained_version(cut_spans, version_spans, null) AS last_weight_version,
  trained_versions(cut_spans, version_spans, null) AS trained_versions,
  created_at, trajectory_key, write_id
FROM trained
