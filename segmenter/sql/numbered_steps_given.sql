-- Steps of the trajectories in force, with their segment: for stores in which every step has its segment from the source.
SELECT
  t.trajectory_id, t.run_id, t.instance_id, t.group_id, t.status, t.n_segments,
  t.trajectory_key, t.write_id, s.step_index, s.segment_index, true AS starts_segment,
  s.turn_id, s.lineage_id, s.lineage_index, s.route, s.base_step, s.boundary, s.boundary_reasons, s.finish_reason,
  coalesce(s.model, t.model) AS model, s.weight_version, s.n_context_tokens, s.n_output_tokens,
  s.n_context_tokens + s.n_output_tokens AS n_step_tokens, s.mask_spans,
  s.version_spans, s.mask_nonlast_version, s.trainable, s.flags, s.usage_input_tokens, s.usage_output_tokens,
  s.created_at, s.messages, s.n_context_messages, s.tools, s.extra, s.token_ids, s.logprobs, s.routed_experts
FROM stored.trajectories AS t
JOIN stored.steps AS s ON t.trajectory_key = s.trajectory_key AND t.write_id = s.write_id
WHERE setting('run') IS NULL OR t.run_id = setting('run')
