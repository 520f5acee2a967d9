//! The planner over small lakes: whole groups in order, weights that add up, the same plan from the same input.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float64Type, Int32Type, Int64Type, UInt64Type};
use dressage_schemas::tables::{rewards, steps, trajectories};
use dressage_schemas::{ErrorKind, Table};
use dressage_segmenter::plan::{GroupOrder, Plan, PlanRequest, PlanSettings, Planner, Remainder, Scope, Trained};
use dressage_segmenter::{Error, LakeSource, MemoryLake, Session, SessionSettings};
use proptest::prelude::*;

use crate::fixture::{NEW_YEAR, chain, step, trajectory};

/// One trajectory of a lake.
#[derive(Debug, Clone)]
struct Told {
    run: &'static str,
    group: usize,
    id: String,
    reward: f64,
    status: &'static str,
    /// Context and output tokens of each segment.
    segments: Vec<(usize, usize)>,
    /// Seconds after new year.
    created: Option<i64>,
}

impl Told {
    fn new(group: usize, nth: usize, segments: &[(usize, usize)]) -> Self {
        Self {
            run: "r",
            group,
            id: format!("g{group}-t{nth}"),
            reward: nth as f64,
            status: "completed",
            segments: segments.to_vec(),
            created: Some((group * 10 + nth) as i64),
        }
    }
}

/// The rows of the trajectories, in the order told.
fn lake(told: &[Told]) -> Arc<MemoryLake> {
    let (mut owners, mut verdicts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (nth, t) in told.iter().enumerate() {
        // as the writer numbers attempts: by the order of writing, which no plan may depend on
        let mut owner = trajectory(t.run, &t.id, 100 + nth as i64);
        owner.group_id = format!("group-{:02}", t.group);
        owner.instance_id = format!("task-{:02}", t.group);
        owner.recorded_reward = Some(t.reward);
        owner.status = t.status.to_owned();
        owner.created_at = t.created.map(|s| NEW_YEAR + s * 1_000_000);
        owner.n_steps = None;
        owner.n_segments = t.segments.len() as i32;
        verdicts.push(rewards::RewardRow {
            trajectory_key: owner.trajectory_key,
            write_id: Some(owner.write_id),
            grader: "default".to_owned(),
            stage: "recorded".to_owned(),
            value: Some(t.reward),
            visible_at: NEW_YEAR,
            ..Default::default()
        });
        for (index, &(context, output)) in t.segments.iter().enumerate() {
            let mut row = step(&owner, index as i32, context, output);
            (row.route, row.boundary, row.segment_index) = ("given".to_owned(), true, Some(index as i32));
            calls.push(row);
        }
        owners.push(owner);
    }
    let half = calls.len() / 2;
    let lake = MemoryLake::new()
        .with(Table::Trajectories, trajectories::batch(&owners).unwrap())
        .with(Table::Rewards, rewards::batch(&verdicts).unwrap())
        .with(Table::Steps, steps::batch(&calls[..half]).unwrap())
        .with(Table::Steps, steps::batch(&calls[half..]).unwrap());
    Arc::new(lake)
}

fn versions() -> BTreeMap<Table, u64> {
    Table::ALL.into_iter().map(|t| (t, 7)).collect()
}

fn session(lake: &Arc<MemoryLake>, set: &[(&str, &str)]) -> Session {
    let set = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let settings = SessionSettings { target_partitions: 2, set, ..SessionSettings::default() };
    Session::over(Arc::clone(lake) as Arc<dyn LakeSource>, settings).unwrap()
}

async fn try_plan(
    lake: &Arc<MemoryLake>,
    session: &Session,
    scope: Scope,
    settings: PlanSettings,
) -> Result<Plan, Error> {
    let source = Arc::clone(lake) as Arc<dyn LakeSource>;
    let request = PlanRequest { scope, trained: Trained::nothing(), settings };
    Planner::new(session, source, &versions(), request).await?.plan().await
}

async fn plan(lake: &Arc<MemoryLake>, set: &[(&str, &str)], settings: PlanSettings) -> Plan {
    let made = try_plan(lake, &session(lake, set), Scope::OnlyRun, settings).await;
    made.unwrap_or_else(|e| panic!("{}", chain(&e)))
}

/// A row of `batches`, as far as tests look at it.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    train_step: i32,
    dp_rank: i32,
    micro_batch: i32,
    position: i32,
    key: i64,
    segment_index: i32,
    n_tokens: i64,
    mask_sum: i64,
    advantage: f64,
    loss_weight: f64,
    step_rows: Vec<u64>,
}

fn rows(plan: &Plan) -> Vec<Row> {
    let all = concat_batches(&Table::Batches.schema(), &plan.batches).unwrap();
    let int = |name: &str, row| all.column_by_name(name).unwrap().as_primitive::<Int64Type>().value(row);
    let small = |name: &str, row| all.column_by_name(name).unwrap().as_primitive::<Int32Type>().value(row);
    let float = |name: &str, row| all.column_by_name(name).unwrap().as_primitive::<Float64Type>().value(row);
    (0..all.num_rows())
        .map(|row| Row {
            train_step: small("train_step", row),
            dp_rank: small("dp_rank", row),
            micro_batch: small("micro_batch", row),
            position: small("position", row),
            key: int("trajectory_key", row),
            segment_index: small("segment_index", row),
            n_tokens: int("n_tokens", row),
            mask_sum: int("mask_sum", row),
            advantage: float("advantage", row),
            loss_weight: float("loss_weight", row),
            step_rows: all
                .column_by_name("step_rows")
                .unwrap()
                .as_list::<i32>()
                .value(row)
                .as_primitive::<UInt64Type>()
                .values()
                .to_vec(),
        })
        .collect()
}

fn key(t: &Told) -> i64 {
    dressage_schemas::ids::TrajectoryKey::of(t.run, &t.id).0
}

/// Three groups of three, two segments each.
fn three_groups() -> Vec<Told> {
    (0..3).flat_map(|g| (0..3).map(move |t| Told::new(g, t, &[(4, 2 + t), (3, 3)]))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_whole_and_in_the_order_of_their_first_trajectory() {
    let mut told = three_groups();
    // the last group began first, though most of it came later
    told[8].created = Some(-1);
    let lake = lake(&told);
    let plan = plan(&lake, &[], PlanSettings::new(6, 100, 2)).await;
    let of_step =
        |step: i32| -> BTreeSet<i64> { rows(&plan).iter().filter(|r| r.train_step == step).map(|r| r.key).collect() };
    let of_groups =
        |groups: &[usize]| -> BTreeSet<i64> { told.iter().filter(|t| groups.contains(&t.group)).map(key).collect() };
    assert_eq!(of_step(0), of_groups(&[2, 0]));
    assert_eq!(of_step(1), of_groups(&[1]));
    assert_eq!(plan.report.n_train_steps, 2);
    assert_eq!((plan.report.remainder.n_groups, plan.report.remainder.n_trajectories), (1, 3));
    assert_eq!(plan.report.trajectories_per_step, (3, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_larger_than_a_train_step_is_a_train_step_of_its_own() {
    let mut told: Vec<Told> = (0..5).map(|t| Told::new(0, t, &[(2, 2)])).collect();
    told.extend((0..2).map(|t| Told::new(1, t, &[(2, 2)])));
    let plan = plan(&lake(&told), &[], PlanSettings::new(3, 100, 1)).await;
    let sizes: Vec<u64> = plan.steps.iter().map(|s| s.n_trajectories).collect();
    assert_eq!(sizes, [5, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remainder_that_is_carried_is_not_planned_and_is_said() {
    let carry = PlanSettings { remainder: Remainder::Carry, ..PlanSettings::new(6, 100, 1) };
    let lake = lake(&three_groups());
    let carried = plan(&lake, &[], carry.clone()).await;
    assert_eq!(carried.report.n_train_steps, 1);
    assert_eq!((carried.report.remainder.n_trajectories, carried.report.remainder.n_samples), (3, 6));
    let error =
        try_plan(&lake, &session(&lake, &[]), Scope::OnlyRun, PlanSettings { global_batch_size: 100, ..carry }).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("9 trajectories") && error.to_string().contains("carry"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_runs_are_planned_only_when_named_and_never_mixed() {
    let mut told = three_groups();
    told.extend((0..3).map(|t| Told { run: "other", ..Told::new(0, t, &[(2, 2)]) }));
    let lake = lake(&told);
    let settings = PlanSettings::new(3, 100, 1);
    let error = try_plan(&lake, &session(&lake, &[]), Scope::OnlyRun, settings.clone()).await.unwrap_err();
    assert!(error.to_string().contains("other, r"), "{error}");
    let error = try_plan(&lake, &session(&lake, &[]), Scope::Run("no".into()), settings.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let one = try_plan(&lake, &session(&lake, &[]), Scope::Run("other".into()), settings.clone()).await.unwrap();
    assert_eq!((one.report.n_trajectories, one.row.run_id.as_deref()), (3, Some("other")));
    // the same group id in two runs: two groups, and two prompts
    let all = try_plan(&lake, &session(&lake, &[]), Scope::AllRuns, settings).await.unwrap();
    assert_eq!((all.report.n_groups, all.report.n_trajectories, all.report.n_train_steps), (4, 12, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_steps_of_a_sample_are_found_and_no_payload_is_read() {
    let told = three_groups();
    let lake = lake(&told);
    let plan = plan(&lake, &[], PlanSettings::new(9, 100, 1)).await;
    for row in rows(&plan) {
        // one step a segment, in the order told; the first nine are in fragment 0
        let owner = told.iter().position(|t| key(t) == row.key).unwrap();
        let nth = (owner * 2) as u64 + row.segment_index as u64;
        assert_eq!(row.step_rows, [if nth < 9 { nth } else { (1 << 32) | (nth - 9) }], "{row:?}");
    }
    let payload = ["token_ids", "logprobs", "routed_experts", "text", "body"];
    for request in lake.requests() {
        assert!(!request.columns.iter().any(|c| payload.contains(&c.as_str())), "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_input_is_the_same_plan_and_another_seed_is_another() {
    let lake = lake(&three_groups());
    let settings = PlanSettings::new(3, 100, 2);
    let first = plan(&lake, &[], settings.clone()).await;
    let again = plan(&lake, &[], settings.clone()).await;
    assert_eq!(first.row, again.row);
    assert_eq!(first.batches, again.batches);
    let shuffled = |seed| PlanSettings { order: GroupOrder::Shuffled, seed, ..settings.clone() };
    let others = [
        plan(&lake, &[], shuffled(1)).await,
        plan(&lake, &[], shuffled(2)).await,
        plan(&lake, &[], PlanSettings { world_size: 3, ..settings.clone() }).await,
        plan(&lake, &[("estimator", "rloo")], settings.clone()).await,
        plan(&lake, &[("max_segment_tokens", "5")], settings.clone()).await,
    ];
    let ids: BTreeSet<&str> = others.iter().chain([&first]).map(|p| p.row.plan_id.as_str()).collect();
    assert_eq!(ids.len(), 6, "six different plans");
    let by_step = |p: &Plan| rows(p).into_iter().map(|r| (r.train_step, r.key)).collect::<BTreeSet<_>>();
    assert!(others[..2].iter().any(|p| by_step(p) != by_step(&first)), "the seed changes the order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_what_it_is_a_function_of() {
    let lake = lake(&three_groups());
    let plan = plan(&lake, &[("loss_aggregation", "constant:64")], PlanSettings::new(3, 100, 1)).await;
    let sql: BTreeMap<String, String> = serde_json::from_str(&plan.row.sql).unwrap();
    for name in ["samples", "segments", "drops", "loss_weights/constant", "internal.numbered_steps"] {
        assert!(sql.contains_key(name), "{name} is missing: {:?}", sql.keys());
    }
    assert!(!sql.contains_key("messages"), "views that have no part in it are left out");
    let versions: BTreeMap<String, u64> = serde_json::from_str(&plan.row.versions).unwrap();
    assert!(versions.contains_key("steps") && !versions.contains_key("plans"));
    assert!(plan.row.settings.contains("constant:64"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_little_memory_ends_the_plan_and_names_the_limit() {
    let told: Vec<Told> = (0..3_000).map(|g| Told::new(g, 0, &[(1, 1), (1, 1), (1, 1), (1, 1)])).collect();
    let lake = lake(&told);
    let settings = SessionSettings { memory_limit_bytes: 1 << 20, target_partitions: 2, ..SessionSettings::default() };
    let session = Session::over(Arc::clone(&lake) as Arc<dyn LakeSource>, settings).unwrap();
    let error = try_plan(&lake, &session, Scope::OnlyRun, PlanSettings::new(8, 100, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.to_string().contains("memory_limit"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_samples_says_who_was_left_out() {
    let told: Vec<Told> = (0..2).map(|t| Told { status: "aborted", ..Told::new(0, t, &[(2, 2)]) }).collect();
    let lake = lake(&told);
    let error = try_plan(&lake, &session(&lake, &[]), Scope::OnlyRun, PlanSettings::new(8, 100, 1)).await.unwrap_err();
    assert!(matches!(error, Error::NothingToPlan { .. }), "{error:?}");
    assert!(error.to_string().contains('2'), "{error}");
}

/// `Σ loss_weight · mask_sum` of rows, by what `of` says.
fn pull<K: Ord>(rows: &[Row], of: impl Fn(&Row) -> K) -> BTreeMap<K, f64> {
    let mut sums = BTreeMap::new();
    for row in rows {
        *sums.entry(of(row)).or_insert(0.0) += row.loss_weight * row.mask_sum as f64;
    }
    sums
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_weights_add_up_as_each_aggregation_says() {
    // uneven: two prompts, three trajectories, five samples, one of them without a trained token
    let told = vec![Told::new(0, 0, &[(4, 6), (2, 3), (5, 0)]), Told::new(0, 1, &[(4, 1)]), Told::new(1, 0, &[(1, 8)])];
    let lake = lake(&told);
    let group_of = |key_of: i64| told.iter().find(|t| key(t) == key_of).unwrap().group;
    let settings = PlanSettings::new(8, 100, 2);
    let with = |aggregation: &'static str| {
        let (lake, settings) = (&lake, settings.clone());
        async move { rows(&plan(lake, &[("loss_aggregation", aggregation)], settings).await) }
    };
    let found = with("prompt_mean").await;
    assert_eq!(found.len(), 5);
    assert!(found.iter().filter(|r| r.mask_sum == 0).all(|r| r.loss_weight == 0.0));
    assert!(pull(&found, |r| group_of(r.key)).values().all(|p| near(*p, 1.0 / 2.0)));
    assert!(pull(&with("trajectory_mean").await, |r| r.key).values().all(|p| near(*p, 1.0 / 3.0)));
    let by_sample = pull(&with("sequence_mean").await, |r| (r.key, r.segment_index));
    assert_eq!(by_sample.values().filter(|p| near(**p, 1.0 / 5.0)).count(), 4);
    assert!(with("token_mean").await.iter().all(|r| r.mask_sum == 0 || near(r.loss_weight, 1.0 / 18.0)));
    assert!(with("constant:64").await.iter().all(|r| r.mask_sum == 0 || near(r.loss_weight, 1.0 / (3.0 * 64.0))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_outnumber_samples_get_empty_micro_batches_and_the_plan_says_so() {
    let told: Vec<Told> = (0..2).map(|t| Told::new(0, t, &[(2, 2)])).collect();
    let plan = plan(&lake(&told), &[], PlanSettings::new(8, 100, 5)).await;
    assert_eq!((plan.report.empty_micro_batches, plan.report.n_micro_batches), (3, 5));
    assert_eq!(plan.steps[0].micro_batches_per_rank, 1);
}

fn told() -> impl Strategy<Value = Vec<Told>> {
    let segments = proptest::collection::vec((1..30_usize, 0..40_usize), 1..4);
    let one = (0..6_usize, segments, any::<bool>(), proptest::option::of(0..50_i64), 0..8_u32);
    proptest::collection::vec(one, 1..28).prop_map(|all| {
        all.into_iter()
            .enumerate()
            .map(|(nth, (group, segments, reward, created, dead))| Told {
                run: "r",
                group,
                id: format!("t{nth:02}"),
                reward: f64::from(u8::from(reward)),
                status: if dead == 0 { "aborted" } else { "completed" },
                segments,
                created,
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_takes_every_sample_once_whatever_order_rows_are_in(
        told in told(),
        rotate in 0..28_usize,
        size in 1..12_u64,
        cap in 5..120_u64,
        world in 1..5_u32,
        shuffled in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let order = if shuffled { GroupOrder::Shuffled } else { GroupOrder::Recorded };
        let settings = PlanSettings { order, seed: 5, ..PlanSettings::new(size, cap, world) };
        let here = lake(&told);
        let mut turned = told.clone();
        turned.rotate_left(rotate % told.len());
        turned.reverse();
        let there = lake(&turned);
        let (first, second) = runtime.block_on(async {
            let first = try_plan(&here, &session(&here, &[]), Scope::OnlyRun, settings.clone()).await;
            let second = try_plan(&there, &session(&there, &[]), Scope::OnlyRun, settings.clone()).await;
            (first, second)
        });
        let Ok(first) = first else {
            prop_assert!(told.iter().all(|t| t.status == "aborted"), "{:?}", first.err());
            return Ok(());
        };
        let second = second.unwrap();
        let (a, b) = (rows(&first), rows(&second));
        // addresses differ, as rows lie elsewhere; all else is the same
        let without = |rows: &[Row]| rows.iter().map(|r| Row { step_rows: Vec::new(), ..r.clone() }).collect::<Vec<_>>();
        prop_assert_eq!(without(&a), without(&b));

        let live: Vec<&Told> = told.iter().filter(|t| t.status == "completed").collect();
        let wanted: BTreeSet<(i64, i32)> =
            live.iter().flat_map(|t| (0..t.segments.len()).map(|s| (key(t), s as i32))).collect();
        let found: BTreeSet<(i64, i32)> = a.iter().map(|r| (r.key, r.segment_index)).collect();
        prop_assert_eq!(a.len(), found.len(), "no sample twice");
        prop_assert_eq!(found, wanted);

        // groups are whole, within one train step
        let mut step_of: BTreeMap<usize, BTreeSet<i32>> = BTreeMap::new();
        for row in &a {
            let group = told.iter().find(|t| key(t) == row.key).unwrap().group;
            step_of.entry(group).or_default().insert(row.train_step);
        }
        prop_assert!(step_of.values().all(|steps| steps.len() == 1));

        // rows are in plan order, under the cap, with equal counts
        let place = |r: &Row| (r.train_step, r.dp_rank, r.micro_batch, r.position);
        prop_assert!(a.windows(2).all(|w| place(&w[0]) < place(&w[1])));
        let mut batches: BTreeMap<(i32, i32, i32), (u64, i64)> = BTreeMap::new();
        for r in &a {
            let batch = batches.entry((r.train_step, r.dp_rank, r.micro_batch)).or_default();
            *batch = (batch.0 + 1, batch.1 + r.n_tokens);
        }
        prop_assert!(batches.values().all(|(n, tokens)| *tokens <= cap as i64 || *n == 1));
        for (step, report) in first.steps.iter().enumerate() {
            let last = a.iter().filter(|r| r.train_step == step as i32).map(|r| r.micro_batch).max().unwrap();
            prop_assert!((last as u64) < report.micro_batches_per_rank);
        }

        // weights are those of each train step: prompts weigh alike
        for step in 0..first.steps.len() as i32 {
            let of_step: Vec<Row> = a.iter().filter(|r| r.train_step == step).cloned().collect();
            let by_prompt = pull(&of_step, |r| told.iter().find(|t| key(t) == r.key).unwrap().group);
            for pull in by_prompt.values() {
                prop_assert!(*pull == 0.0 || (pull - 1.0 / by_prompt.len() as f64).abs() < 1e-9);
            }
            prop_assert!(of_step.iter().all(|r| r.loss_weight.is_finite() && (r.mask_sum > 0 || r.loss_weight == 0.0)));
        }
    }
}

/// Batches that a plan gives are under the schema of their table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_have_the_schema_of_their_table() {
    let plan = plan(&lake(&three_groups()), &[], PlanSettings::new(3, 100, 1)).await;
    assert!(plan.batches.iter().map(RecordBatch::schema).all(|s| s == Table::Batches.schema()));
    assert_eq!(plan.row.n_samples, 18);
}
