-- One message of one step a row, in the order of the conversation; a message that many steps share is stored once.
--
-- trajectory_id   the recorder's id
-- run_id          the run
-- step_index      the step that appended it
-- segment_index   the segment of that step
-- position        0-based, over all messages of the trajectory
-- role            system, user, assistant, tool, …
-- text            all text parts, joined by a newline
-- reasoning       reasoning text
-- tool_calls      JSON array of tool calls in OpenAI form
-- tool_call_id    on a tool result: the call it answers
-- is_output       whether the model produced it in this step
-- body            the exact JSON; null where role and text say everything
-- n_bytes         its size
-- content_hash    its name in contents
-- trajectory_key  integer key that joins the tables
-- write_id        the attempt that wrote it
WITH counted AS (
  SELECT
    trajectory_id, run_id, step_index, segment_index, trajectory_key, write_id, messages, n_context_messages,
    arrow_cast(cardinality(messages), 'Int64') AS n_messages
  FROM internal.numbered_steps
), placed AS (
  SELECT
    *,
    arrow_cast(sum(n_messages) OVER (
      PARTITION BY trajectory_key, write_id ORDER BY step_index ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) - n_messages, 'Int64') AS first_position
  FROM counted
), exploded AS (
  SELECT
    trajectory_id, run_id, step_index, segment_index, trajectory_key, write_id, first_position, n_context_messages,
    unnest(messages) AS content_hash, unnest(range(0, n_messages)) AS offset_in_step
  FROM placed
)
SELECT
  e.trajectory_id, e.run_id, e.step_index, e.segment_index, e.first_position + e.offset_in_step AS position,
  c.role, c.text, c.reasoning, c.tool_calls, c.tool_call_id, e.offset_in_step >= e.n_context_messages AS is_output,
  c.body, c.n_bytes, e.content_hash, e.trajectory_key, e.write_id
FROM exploded AS e
LEFT JOIN stored.contents AS c ON c.content_hash = e.content_hash
