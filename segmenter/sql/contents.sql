-- Messages, tool schemas and inlined files, each stored once and named by its hash.
--
-- content_hash  its name
-- kind          message, tools or data
-- role          role of a message
-- text          all text parts, joined by a newline
-- reasoning     reasoning text
-- tool_calls    JSON array of tool calls in OpenAI form
-- tool_call_id  on a tool result: the call it answers
-- body          the exact JSON; null where role and text say everything
-- n_bytes       its size
-- data          raw bytes of an inlined file
SELECT content_hash, kind, role, text, reasoning, tool_calls, tool_call_id, body, n_bytes, data
FROM stored.contents
