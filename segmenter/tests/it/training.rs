//! Samples of any batch: what may change no advantage changes none, and no token leaves silently.

use std::collections::BTreeMap;
use std::sync::Arc;

use dressage_schemas::Table;
use dressage_schemas::spans::MaskSpans;
use dressage_schemas::tables::steps::{self, StepRow};
use dressage_schemas::tables::trajectories::{self, TrajectoryRow};
use dressage_segmenter::{MemoryLake, Session, SessionSettings};
use proptest::prelude::*;

use crate::fixture::{rows, session, session_with, step, trajectory};
use crate::training_lake::{given, lake_of, member};

/// A trajectory of a batch: its group, its reward, and the generated tokens of its segments.
type Rollout = (usize, f64, Vec<usize>);

fn rollouts() -> impl Strategy<Value = Vec<Rollout>> {
    let reward = prop_oneof![Just(0.0), Just(1.0), -3.0..3.0_f64];
    proptest::collection::vec((0..3_usize, reward, proptest::collection::vec(1..9_usize, 1..4)), 1..12)
}

/// The rows of a batch, whose trajectories are named by their place.
fn batch(rollouts: &[Rollout]) -> (Vec<TrajectoryRow>, Vec<StepRow>) {
    let mut owners = Vec::new();
    let mut segments = Vec::new();
    for (index, (group, reward, outputs)) in rollouts.iter().enumerate() {
        let owner = member(&format!("g{group}"), &format!("p{group}"), &format!("t{index:02}"), Some(*reward));
        segments.extend(outputs.iter().enumerate().map(|(i, n)| given(&owner, i as i32, 2, *n, &["1"])));
        owners.push(owner);
    }
    (owners, segments)
}

async fn advantages(lake: &Arc<MemoryLake>, settings: &[(&str, &str)]) -> BTreeMap<String, String> {
    let session = session(lake);
    for (key, value) in settings {
        session.set(key, Some(value)).unwrap();
    }
    // to the last bit: equal results must be equal, and every segment must have its trajectory's
    let sql = "SELECT DISTINCT trajectory_id, advantage FROM samples";
    let found = rows(&session, sql).await;
    let advantages: BTreeMap<String, String> =
        found.iter().filter_map(|row| row.split_once('|')).map(|(id, a)| (id.to_owned(), a.to_owned())).collect();
    assert_eq!(advantages.len(), found.len(), "a trajectory has two advantages");
    advantages
}

fn on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    #[test]
    fn splitting_shuffling_and_dead_trajectories_change_no_advantage(
        rollouts in rollouts(),
        estimator in proptest::sample::select(vec!["grpo", "rloo", "reinforce_plus_plus_baseline", "ppo"]),
        keys in proptest::collection::vec(any::<u32>(), 64),
        n_dead in 0..3_usize,
    ) {
        let settings = [("estimator", estimator)];
        let (owners, segments) = batch(&rollouts);
        let expected = on(advantages(&lake_of(owners.clone(), &segments), &settings));
        prop_assert_eq!(expected.len(), rollouts.len());

        // every segment cut in two
        let split: Vec<Rollout> = rollouts.iter().map(|(group, reward, outputs)| {
            let parts = outputs.iter().flat_map(|n| [n / 2, n - n / 2]).filter(|n| *n > 0).collect();
            (*group, *reward, parts)
        }).collect();
        let (split_owners, split_segments) = batch(&split);
        prop_assert_eq!(&on(advantages(&lake_of(split_owners, &split_segments), &settings)), &expected);

        // rows in any order
        let mut shuffled: Vec<_> = owners.iter().cloned().zip(&keys).collect();
        shuffled.sort_by_key(|(_, key)| **key);
        let mut shuffled_segments: Vec<_> = segments.iter().cloned().zip(keys.iter().rev().cycle()).collect();
        shuffled_segments.sort_by_key(|(_, key)| **key);
        let shuffled_segments: Vec<_> = shuffled_segments.into_iter().map(|(s, _)| s).collect();
        let shuffled = shuffled.into_iter().map(|(owner, _)| owner).collect();
        prop_assert_eq!(&on(advantages(&lake_of(shuffled, &shuffled_segments), &settings)), &expected);

        // dead and ungraded ones beside them
        let (mut more, mut more_segments) = (owners, segments);
        for i in 0..n_dead {
            let status = ["aborted", "failed", "completed"][i % 3];
            let dead = member("g0", "p0", &format!("dead{i}"), None);
            more_segments.push(given(&dead, 0, 1, 4, &["1"]));
            more.push(TrajectoryRow { status: status.to_owned(), ..dead });
        }
        prop_assert_eq!(&on(advantages(&lake_of(more, &more_segments), &settings)), &expected);
    }

    #[test]
    fn the_advantages_of_a_group_add_up_to_nothing(
        rollouts in rollouts(),
        estimator in proptest::sample::select(vec!["grpo", "gspo", "rloo", "reinforce_plus_plus_baseline"]),
    ) {
        let (owners, segments) = batch(&rollouts);
        let lake = lake_of(owners, &segments);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let session = session(&lake);
        session.set("estimator", Some(estimator)).unwrap();
        let sql = "SELECT count(*) FROM (SELECT group_id, sum(advantage) AS total FROM \
                   (SELECT DISTINCT group_id, trajectory_id, advantage FROM samples) GROUP BY group_id) \
                   WHERE abs(total) > 1e-9";
        prop_assert_eq!(runtime.block_on(rows(&session, sql)), ["0"]);
    }

    #[test]
    fn every_generated_token_is_trained_on_or_counted_as_dropped(
        steps_of in proptest::collection::vec(
            (0..2_i32, any::<bool>(), 0..4_usize, 0..6_usize, any::<bool>(), 0..3_i32), 1..10,
        ),
        cap in proptest::option::of(1..20_u32),
        masks_older in any::<bool>(),
    ) {
        let mut owner = trajectory("r", "t", 1);
        owner.recorded_reward = Some(1.0);
        let rows_of: Vec<StepRow> = steps_of.iter().enumerate().map(|(i, (lineage, boundary, context, output, fit, v))| {
            let mut row = step(&owner, i as i32, *context, *output);
            (row.lineage_index, row.boundary, row.trainable) = (*lineage, *boundary, *fit);
            (row.version_spans, row.weight_version) = (None, Some(v.to_string()));
            row.mask_nonlast_version = masks_older;
            row
        }).collect();
        owner.n_trained_tokens =
            rows_of.iter().filter(|s| s.trainable).map(|s| s.mask_spans.n_trained() as i64).sum();
        let lake = MemoryLake::new()
            .with(Table::Trajectories, trajectories::batch(&[owner.clone()]).unwrap())
            .with(Table::Steps, steps::batch(&rows_of).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let session = session(&Arc::new(lake));
        let cap = cap.map(|n| n.to_string());
        session.set("max_segment_tokens", cap.as_deref()).unwrap();
        let sql = "SELECT (SELECT coalesce(sum(mask_sum), 0) FROM samples) + \
                   (SELECT coalesce(sum(n_lost_tokens), 0) FROM drops)";
        prop_assert_eq!(runtime.block_on(rows(&session, sql)), [owner.n_trained_tokens.to_string()]);
        // every sample or dropped segment once
        let sql = "SELECT count(*) FROM (SELECT segment_index FROM segments EXCEPT ALL \
                   (SELECT segment_index FROM samples UNION ALL SELECT segment_index FROM drops \
                    WHERE NOT has_samples AND segment_index IS NOT NULL))";
        prop_assert_eq!(runtime.block_on(rows(&session, sql)), ["0"]);
        prop_assert_eq!(runtime.block_on(rows(&session, "SELECT count(*) FROM samples WHERE NOT is_finite(advantage)")), ["0"]);
    }
}

async fn told(session: &Session) -> Vec<String> {
    rows(session, "SELECT trajectory_id, segment_index, raw_reward, round(advantage, 4) FROM samples ORDER BY 1, 2")
        .await
}

/// Semantics 5: a (two segments), b, c and a dead d in one group, e alone in another.
#[tokio::test(flavor = "multi_thread")]
async fn the_worked_example_comes_out_as_on_paper() {
    let rollouts = [(0, 1.0, vec![3, 3]), (0, 0.0, vec![3]), (0, 1.0, vec![3]), (1, 1.0, vec![3])];
    let (mut owners, mut segments) = batch(&rollouts);
    let dead = member("g0", "p0", "dead", Some(0.0));
    segments.push(given(&dead, 0, 1, 1, &["1"]));
    owners.push(TrajectoryRow { status: "failed".to_owned(), ..dead });
    let lake = lake_of(owners, &segments);
    let with_std = ["t00|0|0.0|0.7071", "t00|1|1.0|0.7071", "t01|0|0.0|-1.4142", "t02|0|1.0|0.7071", "t03|0|1.0|0.0"];
    assert_eq!(told(&session(&lake)).await, with_std);
    let without = session(&lake);
    without.set("grpo_std_normalization", Some("false")).unwrap();
    let centred = ["t00|0|0.0|0.3333", "t00|1|1.0|0.3333", "t01|0|0.0|-0.6667", "t02|0|1.0|0.3333", "t03|0|1.0|0.0"];
    assert_eq!(told(&without).await, centred);
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_of_one_rollout_count_once() {
    let (owners, segments) = batch(&[(0, 99.0, vec![1, 1, 1]), (0, 11.0, vec![1])]);
    let session = session(&lake_of(owners, &segments));
    session.set("grpo_std_normalization", Some("false")).unwrap();
    let sql = "SELECT DISTINCT trajectory_id, advantage FROM samples ORDER BY 1";
    assert_eq!(rows(&session, sql).await, ["t00|44.0", "t01|-44.0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_uneven_size_are_normalised_each_by_itself_and_once() {
    let (owners, segments) =
        batch(&[(0, 1.0, vec![1]), (0, 3.0, vec![1]), (1, 10.0, vec![1]), (1, 20.0, vec![1, 1]), (1, 30.0, vec![1])]);
    let session = session(&lake_of(owners, &segments));
    let sql = "SELECT trajectory_id, round(max(advantage), 4) FROM samples GROUP BY 1 ORDER BY 1";
    // normalising what is normalised already would change nothing only where there is a deviation of 1
    assert_eq!(rows(&session, sql).await, ["t00|-1.0", "t01|1.0", "t02|-1.2247", "t03|0.0", "t04|1.2247"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_rewards_give_advantages_of_exactly_nothing() {
    let (owners, segments) = batch(&[(0, 0.1, vec![1]), (0, 0.1, vec![1]), (0, 0.1, vec![2]), (1, 0.7, vec![1])]);
    let session = session(&lake_of(owners, &segments));
    assert_eq!(rows(&session, "SELECT DISTINCT advantage FROM samples").await, ["0.0"]);
    let sql = "SELECT trajectory_id, reason FROM drops ORDER BY 1";
    let expected = ["t00|zero_variance", "t01|zero_variance", "t02|zero_variance", "t03|group_of_one"];
    assert_eq!(rows(&session, sql).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_without_a_trained_token_has_an_advantage_and_a_reason() {
    let (owners, mut segments) = batch(&[(0, 1.0, vec![4]), (0, 0.0, vec![4])]);
    segments[0].mask_spans = MaskSpans::context_then_output(6, 0);
    let session = session(&lake_of(owners, &segments));
    session.set("loss_aggregation", Some("trajectory_mean")).unwrap();
    let sql = "SELECT trajectory_id, mask_sum, response_length, advantage, denominator FROM samples ORDER BY 1";
    assert_eq!(rows(&session, sql).await, ["t00|0|0|1.0|0.0", "t01|4|4|-1.0|4.0"]);
    assert_eq!(rows(&session, "SELECT trajectory_id, segment_index, reason FROM drops").await, ["t00|0|all_masked"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_agents_segment_takes_no_reward_under_main_lineage() {
    let owner = TrajectoryRow { n_segments: 3, ..member("g0", "p0", "a", Some(1.0)) };
    let segments: Vec<StepRow> = [0, 0, 1]
        .iter()
        .enumerate()
        .map(|(i, lineage)| StepRow { lineage_index: *lineage, ..given(&owner, i as i32, 1, 1, &["1"]) })
        .collect();
    let session = session(&lake_of(vec![owner], &segments));
    let sql = "SELECT segment_index FROM samples WHERE raw_reward = 1";
    assert_eq!(rows(&session, sql).await, ["2"]);
    session.set("anchor_rule", Some("main_lineage")).unwrap();
    assert_eq!(rows(&session, sql).await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_are_not_mixed() {
    let (mut owners, mut segments) = batch(&[(0, 1.0, vec![3]), (0, 0.0, vec![5])]);
    for (i, reward) in [5.0, 7.0].iter().enumerate() {
        let other = TrajectoryRow {
            recorded_reward: Some(*reward),
            group_id: "g0".to_owned(),
            instance_id: "p0".to_owned(),
            n_steps: None,
            ..trajectory("other", &format!("t{i:02}"), 900 + i as i64)
        };
        segments.push(given(&other, 0, 1, 1, &["1"]));
        owners.push(other);
    }
    let session = session(&lake_of(owners, &segments));
    let sql = "SELECT run_id, trajectory_id, advantage, denominator FROM samples ORDER BY 1, 2";
    let expected = ["other|t00|-1.0|2.0", "other|t01|1.0|2.0", "r|t00|1.0|8.0", "r|t01|-1.0|8.0"];
    assert_eq!(rows(&session, sql).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_read_no_payload() {
    let (owners, segments) = batch(&[(0, 1.0, vec![3]), (0, 0.0, vec![5])]);
    let lake = lake_of(owners, &segments);
    let session = session_with(&lake, SessionSettings::default());
    for relation in ["samples", "drops", "groups", "anchors"] {
        rows(&session, &format!("SELECT * FROM {relation}")).await;
    }
    let requests = lake.requests();
    let read: Vec<&String> = requests.iter().filter(|r| r.table == Table::Steps).flat_map(|r| &r.columns).collect();
    for payload in ["token_ids", "logprobs", "routed_experts", "messages", "extra"] {
        assert!(!read.iter().any(|column| *column == payload), "{payload} was read: {read:?}");
    }
}
