-- Where the policy was least sure of itself: steps by the mean log-probability of their trained tokens, lowest first.
SELECT
  trajectory_id, step_index AS step, n_output_tokens AS tokens, round(masked_mean(logprobs, mask_spans), 3) AS mean_logprob,
  replace(right(decode(token_ids), 48), chr(10), ' ') AS ends_with
FROM steps
WHERE n_trained_tokens > 0 AND logprobs IS NOT NULL
ORDER BY mean_logprob
LIMIT 5
