-- Each sample's place in a plan: in which train step, on which rank, in which micro-batch.
--
-- plan_id         the plan
-- train_step      0, 1, 2, …
-- dp_rank         the data-parallel rank that takes it
-- micro_batch     0, 1, 2, … within (train_step, dp_rank)
-- position        0, 1, 2, … within the micro-batch
-- trajectory_key  joins `trajectories`
-- write_id        the attempt that wrote the trajectory
-- segment_index   the segment
-- n_tokens        its tokens, after the cap
-- mask_sum        its trained tokens
-- advantage       its advantage
-- loss_weight     what its summed token loss is multiplied with
-- step_rows       addresses of its steps in the pinned version of `steps`
SELECT
  batch.plan_id, batch.train_step, batch.dp_rank, batch.micro_batch, batch.position, batch.trajectory_key,
  batch.write_id, batch.segment_index, batch.n_tokens, batch.mask_sum, batch.advantage, batch.loss_weight,
  batch.step_rows
FROM stored.batches AS batch
-- a plan is visible through its own row or not at all
JOIN plans AS plan ON plan.plan_id = batch.plan_id AND plan.plan_write_id = batch.plan_write_id
