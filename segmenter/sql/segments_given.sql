-- One segment a row: steps of one lineage whose tokens form one append-only sequence; here as the source gave them.
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
WITH counted AS (
  SELECT
    *, arrow_cast(n_step_tokens, 'Int64') AS n_recorded_tokens,
    trainable AND n_step_tokens > 0 AS has_gradient
  FROM internal.numbered_steps
), cut AS (
  SELECT
    *, least(n_recorded_tokens, setting('max_segment_tokens')::bigint) AS n_tokens,
    mask_cap(mask_spans, setting('max_segment_tokens')::bigint) AS cut_spans
  FROM counted
), trained AS (
  SELECT *, train_mask(cut_spans, version_spans, mask_nonlast_version) AS train_spans
  FROM cut
)
SELECT
  trajectory_id, run_id, instance_id, group_id, status, segment_index,
  CASE
    WHEN setting('anchor_rule') = 'main_lineage' THEN segment_index = first_value(segment_index) OVER (
      PARTITION BY trajectory_key, write_id ORDER BY lineage_index, segment_index DESC
    )
    ELSE segment_index = n_segments - 1
  END AS is_anchor,
  lineage_index, step_index AS first_step, step_index AS last_step, arrow_cast(1, 'Int64') AS n_steps,
  make_array(step_index) AS steps,
  n_tokens, n_recorded_tokens, arrow_cast(n_context_tokens, 'Int64') AS n_context_tokens,
  arrow_cast(n_output_tokens, 'Int64') AS n_output_tokens,
  CASE WHEN has_gradient THEN mask_start(cut_spans) ELSE n_tokens END AS response_start,
  CASE WHEN has_gradient THEN n_tokens - mask_start(cut_spans) ELSE 0 END AS response_length,
  CASE WHEN has_gradient THEN mask_sum(train_spans) ELSE 0 END AS mask_sum,
  CASE WHEN has_gradient THEN mask_sum(mask_spans) ELSE 0 END AS n_trained_tokens,
  CASE WHEN has_gradient THEN mask_sum(mask_spans) - mask_sum(cut_spans) ELSE 0 END AS n_cut_tokens,
  CASE WHEN has_gradient THEN mask_sum(cut_spans) - mask_sum(train_spans) ELSE 0 END AS n_older_tokens,
  CASE WHEN has_gradient THEN train_spans ELSE mask_none(train_spans) END AS mask_spans,
  arrow_cast(cardinality(messages), 'Int64') AS n_messages, has_gradient AS trainable, finish_reason,
  coalesce(finish_reason = 'length', false) AS truncated, boundary_reasons AS reasons, model,
  first_trained_version(cut_spans, version_spans, weight_version) AS first_weight_version,
  last_trained_version(cut_spans, version_spans, weight_version) AS last_weight_version,
  trained_versions(cut_spans, version_spans, weight_version) AS trained_versions,
  created_at, trajectory_key, write_id
FROM trained
