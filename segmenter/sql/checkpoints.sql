-- Published weights: one row a checkpoint that counts, each going on from the one before it in its training run.
--
-- checkpoint_id        its id
-- train_run            the training run
-- after_checkpoint_id  the checkpoint that the run went on from; NULL for a first one
-- plan_id              the plan that is being consumed; NULL where batches came from none
-- next_train_step      train steps of the plan below this one went into the weights
-- optimizer_step       train steps of the training run so far, over all its plans, skipped ones too
-- weight_version       the name under which rollouts record these weights
-- model                the architecture
-- location             the folder of its files: below the store, or a URL
-- files                its files: path, bytes, hash
-- n_bytes              their size
-- settings             JSON object: the settings that were in force
-- created_at           when it was published
SELECT
  checkpoint_id, train_run, after_checkpoint_id, plan_id, next_train_step, optimizer_step, weight_version, model, location,
  files, n_bytes, settings, created_at
-- of two rows that go on from the same checkpoint, the table shows the first committed
FROM stored.checkpoints
