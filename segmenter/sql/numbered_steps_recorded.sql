-- Steps of the trajectories in force, with their segment: a segment is a run of steps of one lineage between two
-- boundaries, numbered in order of lineage and step; where the source gave the segment, its number stands. A step behind
-- a boundary, and one that branches, holds its whole prompt (masked), so a segment needs no step of another.
--
-- Both windows need the same order of rows, so there is one sort. Neither runs if segment_index is not asked for.
WITH owned AS (
  SELECT
    t.trajectory_id, t.run_id, t.instance_id, t.group_id, t.status,
    t.trajectory_key, t.write_id, s.step_index, s.segment_index AS given_segment_index,
    s.turn_id, s.lineage_id, s.lineage_index, s.route, s.base_step, s.boundary, s.boundary_reasons, s.finish_reason,
    coalesce(s.model, t.model) AS model, s.weight_version, s.n_context_tokens, s.n_output_tokens,
    s.n_context_tokens + s.n_output_tokens AS n_step_tokens, s.mask_spans,
    s.version_spans, s.mask_nonlast_version, s.trainable, s.flags, s.usage_input_tokens, s.usage_output_tokens,
    s.created_at, s.messages, s.n_context_messages, s.tools, s.extra, s.token_ids, s.logprobs, s.routed_experts
  FROM stored.trajectories AS t
  JOIN stored.steps AS s ON t.trajectory_key = s.trajectory_key AND t.write_id = s.write_id
  WHERE setting('run') IS NULL OR t.run_id = setting('run')
), started AS (
  SELECT
    *,
    boundary OR lineage_index IS DISTINCT FROM lag(lineage_index) OVER (
      PARTITION BY trajectory_key, write_id ORDER BY lineage_index, step_index
    ) AS starts_segment
  FROM owned
)
SELECT
  trajectory_id, run_id, instance_id, group_id, status, trajectory_key, write_id, step_index,
  coalesce(
    given_segment_index,
    arrow_cast(sum(CASE WHEN starts_segment THEN 1 ELSE 0 END) OVER (
      PARTITION BY trajectory_key, write_id ORDER BY lineage_index, step_index
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) - 1, 'Int32')
  ) AS segment_index,
  starts_segment, turn_id, lineage_id, lineage_index, route, base_step, boundary, boundary_reasons, finish_reason,
  model, weight_version, n_context_tokens, n_output_tokens, n_step_tokens, mask_spans, version_spans, mask_nonlast_version,
  trainable, flags, usage_input_tokens, usage_output_tokens, created_at, messages, n_context_messages, tools, extra,
  token_ids, logprobs, routed_experts
FROM started
