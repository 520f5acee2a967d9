-- Every prompt of a train step weighs the same, and so does every trained token of a prompt: 1 / (N_P · M_P).
--
-- N_P is the number of live prompts of the train step, M_P the trained tokens of a prompt over all its segments. A prompt
-- of which no token is trained counts in N_P and its samples weigh 0.
WITH prompts AS (
  SELECT train_step, run_id, instance_id, sum(mask_sum) AS prompt_tokens
  FROM planned
  GROUP BY train_step, run_id, instance_id
), steps AS (
  SELECT train_step, count(*) AS n_prompts FROM prompts GROUP BY train_step
)
SELECT
  p.trajectory_key, p.segment_index,
  CASE
    WHEN p.mask_sum = 0 THEN 0.0
    ELSE 1.0 / (CAST(s.n_prompts AS DOUBLE) * CAST(m.prompt_tokens AS DOUBLE))
  END AS loss_weight
FROM planned AS p
JOIN prompts AS m
  ON m.train_step = p.train_step AND m.run_id = p.run_id AND m.instance_id = p.instance_id
JOIN steps AS s ON s.train_step = p.train_step
