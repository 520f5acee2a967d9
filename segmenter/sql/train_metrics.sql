-- Metrics of train steps: one row a metric of a step. Of a step that was done again after a crash, the last time.
--
-- train_run       the training run
-- plan_id         the plan that the step is of; NULL where batches came from none
-- train_step      0, 1, 2, … within the plan
-- optimizer_step  train steps of the training run before this one, over all its plans, skipped ones too
-- metric          its name, such as loss
-- value           its value
-- weight_version  the weights that the step began with
-- recorded_at     when
WITH times AS (
  SELECT
    *,
    row_number() OVER (
      PARTITION BY train_run, optimizer_step, metric ORDER BY recorded_at DESC, value
    ) AS times_back
  FROM stored.train_metrics
)
SELECT train_run, plan_id, train_step, optimizer_step, metric, value, weight_version, recorded_at
FROM times
WHERE times_back = 1
