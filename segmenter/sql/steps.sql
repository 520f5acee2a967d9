-- One model call a row, holding only what that call appended; tokens and log-probs as lists.
--
-- trajectory_id         the recorder's id
-- run_id                the run
-- instance_id           the task or prompt
-- group_id              the group of its trajectory
-- step_index            0-based, in order of recording over the whole trajectory
-- segment_index         0-based segment of the trajectory
-- lineage_index         0-based chain of steps: a sub-agent or a branch is one of its own
-- lineage_id            the source's name of the chain
-- turn_id               the harness's call of the agent
-- route                 create, append, branch or given
-- base_step             the step that this one extends or branches from
-- boundary              whether a segment starts here
-- boundary_reasons      why it does
-- finish_reason         as the engine gave it; length is truncated
-- model                 the policy's name
-- weight_version        the weights that answered
-- n_tokens              tokens that the step appended
-- n_context_tokens      of them context
-- n_output_tokens       of them generated
-- n_trained_tokens      of them with gradient
-- trainable             whether the policy sampled these tokens and nobody abandoned them
-- flags                 what is odd about it
-- usage_input_tokens    prompt tokens as the provider counted them
-- usage_output_tokens   output tokens as the provider counted them
-- created_at            when the call was made
-- mask_spans            loss mask as run lengths, masked first; mask(mask_spans) is the list
-- version_spans         weight version of each token as run lengths
-- mask_nonlast_version  whether tokens of other than the last version are to be masked
-- messages              content hashes of the messages that it appended
-- n_context_messages    how many of them are context
-- tools                 content hash of the tool schemas
-- extra                 JSON object of keys without a column
-- trajectory_key        integer key that joins the tables
-- write_id              the attempt that wrote it
-- token_ids             token ids, as a list; decode(token_ids) is text
-- logprobs              log-probabilities under the sampling policy, 0 on context
-- routed_experts        router choices, encoded; experts(routed_experts, token, layer) reads them
SELECT
  trajectory_id, run_id, instance_id, group_id, step_index, segment_index, lineage_index, lineage_id, turn_id,
  route, base_step, boundary, boundary_reasons, finish_reason, model, weight_version,
  n_context_tokens + n_output_tokens AS n_tokens, n_context_tokens, n_output_tokens,
  mask_sum(mask_spans) AS n_trained_tokens, trainable, flags, usage_input_tokens, usage_output_tokens, created_at,
  mask_spans, version_spans, mask_nonlast_version, messages, n_context_messages, tools, extra,
  trajectory_key, write_id,
  token_ids(token_ids) AS token_ids, floats(logprobs) AS logprobs, routed_experts
FROM internal.numbered_steps
