//! A lake whose samples a person can work out on paper. All segments are given; versions 1 and 2 were observed in that
//! order.
//!
//! | group, prompt | trajectory | reward | segments: context + generated tokens (weight version) |
//! | --- | --- | --- | --- |
//! | g0, p0 | a | 1 | 2+3 (1), 1+2 (1) |
//! | | b | 0 | 1+2 (2) |
//! | | c | 1 | 2+4 (1, 1, 2, 2), older versions masked |
//! | | d | none, aborted | 1+1 (1) |
//! | g1, p1 | e | 1 | 3+1 (2), ended for length |
//! | g2, p1 | f | none | 1+1 (2) |
//! | | g | 3 | 10+10 (1) |
//! | | h | 1 | 1+1 (2); 2+2 not trainable; text only |

use std::sync::Arc;

use dressage_schemas::Table;
use dressage_schemas::spans::{MaskSpans, VersionSpans};
use dressage_schemas::tables::steps::{self, StepRow};
use dressage_schemas::tables::trajectories::{self, TrajectoryRow};
use dressage_schemas::tables::weight_versions;
use dressage_segmenter::MemoryLake;

use crate::fixture::{NEW_YEAR, step, trajectory};
use crate::trainer_rows::TrainedSegments;

/// A trajectory of run `r`; its counts are filled in by [`lake_of`].
pub(crate) fn member(group: &str, prompt: &str, id: &str, reward: Option<f64>) -> TrajectoryRow {
    let write_id = 1 + id.bytes().fold(0_i64, |sum, b| sum * 256 + i64::from(b)) % 1_000_000_007;
    TrajectoryRow {
        instance_id: prompt.to_owned(),
        group_id: group.to_owned(),
        recorded_reward: reward,
        n_steps: None,
        ..trajectory("r", id, write_id)
    }
}

/// A segment as a source gives it; `versions` are those of the generated tokens, or one for all of them.
pub(crate) fn given(owner: &TrajectoryRow, index: i32, context: usize, output: usize, versions: &[&str]) -> StepRow {
    let mut spans = VersionSpans::default();
    spans.push("-1", context);
    match versions {
        [one] => spans.push(one, output),
        many => many.iter().for_each(|version| spans.push(version, 1)),
    }
    StepRow {
        route: "given".to_owned(),
        segment_index: Some(index),
        boundary: true,
        boundary_reasons: vec!["initial".to_owned()],
        mask_spans: MaskSpans::context_then_output(context, output),
        version_spans: Some(spans),
        weight_version: versions.last().map(|v| (*v).to_owned()),
        ..step(owner, index, context, output)
    }
}

/// A lake of these trajectories and steps.
pub(crate) fn lake_of(owners: Vec<TrajectoryRow>, segments: &[StepRow]) -> Arc<MemoryLake> {
    Arc::new(rollouts(owners, segments))
}

fn rollouts(mut owners: Vec<TrajectoryRow>, segments: &[StepRow]) -> MemoryLake {
    for owner in &mut owners {
        let own = || segments.iter().filter(|s| s.trajectory_key == owner.trajectory_key);
        owner.n_segments = own().filter_map(|s| s.segment_index).max().map_or(0, |last| last + 1);
        owner.n_tokens = own().map(|s| i64::from(s.n_context_tokens + s.n_output_tokens)).sum();
        owner.n_trained_tokens = own().filter(|s| s.trainable).map(|s| s.mask_spans.n_trained() as i64).sum();
    }
    let version = |name: &str, ordinal: i64| weight_versions::WeightVersionRow {
        run_id: "r".to_owned(),
        weight_version: name.to_owned(),
        ordinal,
        first_seen_at: NEW_YEAR + ordinal,
    };
    let versions = [version("1", 1), version("unknown", 2), version("2", 3)];
    MemoryLake::new()
        .with(Table::Trajectories, trajectories::batch(&owners).unwrap())
        .with(Table::Steps, steps::batch(segments).unwrap())
        .with(Table::WeightVersions, weight_versions::batch(&versions).unwrap())
}

/// The lake of the module's table.
pub(crate) fn training_lake() -> Arc<MemoryLake> {
    let a = member("g0", "p0", "a", Some(1.0));
    let b = member("g0", "p0", "b", Some(0.0));
    let c = member("g0", "p0", "c", Some(1.0));
    let d = TrajectoryRow { status: "aborted".to_owned(), ..member("g0", "p0", "d", None) };
    let e = member("g1", "p1", "e", Some(1.0));
    let f = member("g2", "p1", "f", None);
    let g = member("g2", "p1", "g", Some(3.0));
    let h = member("g2", "p1", "h", Some(1.0));
    let segments = [
        given(&a, 0, 2, 3, &["1"]),
        given(&a, 1, 1, 2, &["1"]),
        given(&b, 0, 1, 2, &["2"]),
        StepRow { mask_nonlast_version: true, ..given(&c, 0, 2, 4, &["1", "1", "2", "2"]) },
        given(&d, 0, 1, 1, &["1"]),
        StepRow { finish_reason: Some("length".to_owned()), ..given(&e, 0, 3, 1, &["2"]) },
        given(&f, 0, 1, 1, &["2"]),
        given(&g, 0, 10, 10, &["1"]),
        given(&h, 0, 1, 1, &["2"]),
        StepRow { trainable: false, ..given(&h, 1, 2, 2, &["2"]) },
        StepRow { token_ids: None, logprobs: None, version_spans: None, ..given(&h, 2, 0, 0, &["2"]) },
    ];
    let trained = TrainedSegments { a: a.clone(), c: c.clone() };
    Arc::new(trained.written_to(rollouts(vec![a, b, c, d, e, f, g, h], &segments)))
}
