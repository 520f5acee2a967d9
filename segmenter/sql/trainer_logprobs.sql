-- The trainer's log-probs beside the rollout's: one row a segment of a train step, lists over its trained tokens.
--
-- train_run         the training run
-- plan_id           the plan that the step is of; NULL where batches came from none
-- train_step        0, 1, 2, … within the plan
-- optimizer_step    train steps of the training run before this one, over all its plans, skipped ones too
-- weight_version    the weights that the trainer's log-probs are under
-- trajectory_key    joins `trajectories`
-- write_id          the attempt that wrote the trajectory
-- trajectory_id     the recorder's id
-- segment_index     the segment
-- token_places      the trained tokens: 0-based places within the segment
-- logprobs          the rollout's log-probs there; NULL where it recorded none
-- trainer_logprobs  the trainer's log-probs there
-- recorded_at       when
WITH times AS (
  -- a step that was done again after a crash is recorded again
  SELECT
    *,
    row_number() OVER (
      PARTITION BY train_run, optimizer_step, trajectory_key, segment_index ORDER BY recorded_at DESC, write_id
    ) AS times_back
  FROM stored.trainer_logprobs
)
SELECT
  train_run, plan_id, train_step, optimizer_step, weight_version, trajectory_key, write_id, trajectory_id, segment_index,
  token_places, logprobs, trainer_logprobs, recorded_at
FROM times
WHERE times_back = 1
