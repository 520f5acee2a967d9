//! What a trainer wrote down beside the rollouts of `training_lake.rs`. It died after its third step and did that step
//! again: the second time counts. A second process went on from the first checkpoint too late.
//!
//! | train run, optimizer step | segment | places | rollout | trainer |
//! | --- | --- | --- | --- | --- |
//! | t, 0 | a 0 | 2, 3, 4 | -0.5, -0.5, -0.5 | -0.5, -0.75, -2.5 |
//! | t, 0 | c 0 | 4, 5 | none | -1, -1 |
//! | t, 1 | a 0 | 2, 3, 4 | -0.5, -0.5, -0.5 | first -9, -9, -9; then -0.5, -0.5, -1 |

use dressage_schemas::Table;
use dressage_schemas::tables::checkpoints::{self, CheckpointFile, CheckpointRow};
use dressage_schemas::tables::train_metrics::{self, TrainMetricRow};
use dressage_schemas::tables::trainer_logprobs::{self, TrainerLogprobRow};
use dressage_schemas::tables::trajectories::TrajectoryRow;
use dressage_segmenter::MemoryLake;

use crate::fixture::NEW_YEAR;

/// The trajectories that were trained on.
pub(crate) struct TrainedSegments {
    pub(crate) a: TrajectoryRow,
    pub(crate) c: TrajectoryRow,
}

fn metric(step: i64, name: &str, value: f64, version: &str, at: i64) -> TrainMetricRow {
    TrainMetricRow {
        train_run: "t".to_owned(),
        plan_id: Some("p".to_owned()),
        train_step: step as i32,
        optimizer_step: step,
        metric: name.to_owned(),
        value,
        weight_version: Some(version.to_owned()),
        recorded_at: NEW_YEAR + at,
    }
}

fn checkpoint(id: &str, after: Option<&str>, step: i64) -> CheckpointRow {
    CheckpointRow {
        checkpoint_id: id.to_owned(),
        train_run: "t".to_owned(),
        after_checkpoint_id: after.map(str::to_owned),
        plan_id: Some("p".to_owned()),
        next_train_step: step as i32,
        optimizer_step: step,
        weight_version: format!("w{step}"),
        model: "qwen3".to_owned(),
        location: format!("checkpoints/t/{id}"),
        files: vec![CheckpointFile { path: "model.safetensors".to_owned(), bytes: 9, hash: "0".repeat(32) }],
        n_bytes: 9,
        settings: "{}".to_owned(),
        created_at: NEW_YEAR + step,
    }
}

impl TrainedSegments {
    fn logprobs(
        &self,
        owner: &TrajectoryRow,
        step: i64,
        recorded: bool,
        trainer: &[f32],
        at: i64,
    ) -> TrainerLogprobRow {
        let first = if owner.trajectory_id == "a" { 2 } else { 4 };
        TrainerLogprobRow {
            train_run: "t".to_owned(),
            plan_id: Some("p".to_owned()),
            train_step: step as i32,
            optimizer_step: step,
            weight_version: Some(format!("w{step}")),
            trajectory_key: owner.trajectory_key,
            write_id: owner.write_id,
            trajectory_id: owner.trajectory_id.clone(),
            segment_index: 0,
            token_places: (first..first + trainer.len() as i32).collect(),
            logprobs: recorded.then(|| vec![-0.5; trainer.len()]),
            trainer_logprobs: trainer.to_vec(),
            recorded_at: NEW_YEAR + at,
        }
    }

    pub(crate) fn written_to(&self, lake: MemoryLake) -> MemoryLake {
        let metrics = [
            metric(0, "loss", 2.0, "w0", 1),
            metric(0, "reward_mean", 0.5, "w0", 1),
            metric(1, "loss", 9.0, "w1", 2),
            metric(1, "loss", 1.5, "w1", 3),
        ];
        let first = [
            self.logprobs(&self.a, 0, true, &[-0.5, -0.75, -2.5], 1),
            self.logprobs(&self.c, 0, false, &[-1.0, -1.0], 1),
            self.logprobs(&self.a, 1, true, &[-9.0, -9.0, -9.0], 2),
        ];
        let again = self.logprobs(&self.a, 1, true, &[-0.5, -0.5, -1.0], 3);
        let late = [checkpoint("late", Some("c1"), 7)];
        lake.with(Table::TrainMetrics, train_metrics::batch(&metrics).unwrap())
            .with(Table::TrainerLogprobs, trainer_logprobs::batch(&first).unwrap())
            .with(Table::TrainerLogprobs, trainer_logprobs::batch(&[again]).unwrap())
            .with(
                Table::Checkpoints,
                checkpoints::batch(&[checkpoint("c1", None, 1), checkpoint("c2", Some("c1"), 2)]).unwrap(),
            )
            .with(Table::Checkpoints, checkpoints::batch(&late).unwrap())
    }
}
