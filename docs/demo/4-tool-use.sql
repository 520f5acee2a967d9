-- Which tools the agents called, and in how many trajectories.
SELECT tool, count(*) AS calls, count(DISTINCT trajectory_key) AS trajectories
FROM (
  SELECT trajectory_key, json_get(tool_calls, concat('[', n, '].function.name')) AS tool
  FROM (SELECT trajectory_key, tool_calls, unnest(range(0, 32)) AS n FROM messages WHERE is_output AND tool_calls IS NOT NULL)
)
WHERE tool IS NOT NULL
GROUP BY tool
ORDER BY calls DESC, tool
LIMIT 10
