-- What is in the store: by format and model, with how much of it can be trained on.
SELECT
  format, model, count(*) AS trajectories, sum(n_segments) AS segments, sum(n_messages) AS messages,
  sum(n_tokens) AS tokens, sum(n_trained_tokens) AS trained, round(avg(reward), 3) AS mean_reward
FROM trajectories
GROUP BY format, model
ORDER BY tokens DESC, trajectories DESC
