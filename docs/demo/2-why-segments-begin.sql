-- Why context was broken: each reason why a new segment began, and how many tokens a trainer sees again because of it.
SELECT
  why, count(*) AS segments, count(DISTINCT trajectory_key) AS trajectories, sum(n_tokens) AS tokens,
  round(avg(n_tokens)) AS tokens_each
FROM (SELECT trajectory_key, n_tokens, unnest(reasons) AS why FROM segments)
GROUP BY why
ORDER BY segments DESC
