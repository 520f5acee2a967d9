-- Where inference and training do not agree: one row a trained token of a train step.
--
-- train_run        the training run
-- train_step       0, 1, 2, … within the plan
-- optimizer_step   train steps of the training run before this one, over all its plans, skipped ones too
-- trajectory_id    the recorder's id
-- segment_index    the segment
-- token_place      the token: 0-based place within the segment
-- logprob          the rollout's log-prob; NULL where it recorded none
-- trainer_logprob  the trainer's log-prob
-- difference       the trainer's less the rollout's; NULL where that is
-- trajectory_key   joins `trajectories`
WITH tokens AS (
  SELECT
    train_run, train_step, optimizer_step, trajectory_key, trajectory_id, segment_index,
    unnest(token_places) AS token_place,
    unnest(logprobs) AS logprob,
    unnest(trainer_logprobs) AS trainer_logprob
  FROM trainer_logprobs
)
SELECT
  train_run, train_step, optimizer_step, trajectory_id, segment_index, token_place, logprob, trainer_logprob,
  CAST(trainer_logprob AS double) - CAST(logprob AS double) AS difference, trajectory_key
FROM tokens
