//! Which verdict counts.

use std::sync::Arc;

use dressage_schemas::Table;
use dressage_schemas::tables::rewards::{self, RewardRow};
use dressage_schemas::tables::trajectories;
use dressage_segmenter::{MemoryLake, Session};

use crate::fixture::{NEW_YEAR, rows, session, shown, trajectory};

fn verdict(owner: &trajectories::TrajectoryRow, grader: &str, value: Option<f64>, graded_at: Option<i64>) -> RewardRow {
    RewardRow {
        trajectory_key: owner.trajectory_key,
        grader: grader.to_owned(),
        stage: "final".to_owned(),
        value,
        graded_at: graded_at.map(|s| NEW_YEAR + s),
        visible_at: NEW_YEAR + 100,
        ..Default::default()
    }
}

/// `a` came with 1.0, `b` with nothing; both were graded later by two graders, `b` out of order. `c` has an earlier copy
/// whose own verdict must not count.
fn graded() -> Arc<MemoryLake> {
    let mut a = trajectory("run", "a", 1);
    a.recorded_reward = Some(1.0);
    let b = trajectory("run", "b", 2);
    let mut c = trajectory("run", "c", 4);
    c.revision = 1;
    let mut earlier = trajectory("run", "c", 3);
    earlier.recorded_reward = Some(7.0);
    let came_with = |owner: &trajectories::TrajectoryRow| RewardRow {
        write_id: Some(owner.write_id),
        stage: "recorded".to_owned(),
        ..verdict(owner, "default", owner.recorded_reward, None)
    };
    let verdicts = [
        came_with(&a),
        came_with(&earlier),
        verdict(&a, "judge", Some(0.25), Some(10)),
        verdict(&b, "judge", Some(0.75), Some(20)),
        verdict(&b, "judge", Some(0.5), Some(5)),
        verdict(&a, "tests", Some(0.0), Some(1)),
        verdict(&a, "tests", None, Some(2)),
    ];
    let lake = MemoryLake::new()
        .with(Table::Trajectories, trajectories::batch(&[a, b, c, earlier]).unwrap())
        .with(Table::Rewards, rewards::batch(&verdicts).unwrap());
    Arc::new(lake)
}

async fn rewards_of(session: &Session) -> Vec<String> {
    rows(session, "SELECT trajectory_id, reward FROM trajectories ORDER BY 1").await
}

#[tokio::test]
async fn the_recorded_reward_stands_and_later_verdicts_fill_the_gaps() {
    assert_eq!(rewards_of(&session(&graded())).await, ["a|1.0", "b|0.75", "c|"]);
}

#[tokio::test]
async fn a_chosen_grader_gives_its_last_verdict_also_if_that_is_none() {
    let session = session(&graded());
    session.set("grader", Some("judge")).unwrap();
    assert_eq!(rewards_of(&session).await, ["a|0.25", "b|0.75", "c|"]);
    session.set("grader", Some("tests")).unwrap();
    assert_eq!(rewards_of(&session).await, ["a|", "b|", "c|"], "the last verdict of `tests` on `a` is no number");
    session.set("grader", Some("default")).unwrap();
    assert_eq!(rewards_of(&session).await, ["a|1.0", "b|", "c|"], "an earlier copy's verdict does not count");
}

#[tokio::test]
async fn verdicts_of_copies_in_force_are_all_listed() {
    let session = session(&graded());
    let sql = "SELECT trajectory_id, count(*) FROM rewards GROUP BY 1 ORDER BY 1";
    assert_eq!(rows(&session, sql).await, ["a|4", "b|2"]);
}

#[tokio::test]
async fn rewards_cost_no_join_where_nothing_was_graded_later() {
    let plan = shown(&session(&crate::fixture::lake()), "EXPLAIN SELECT avg(reward) FROM trajectories").await;
    assert!(!plan.contains("Join"), "{plan}");
}
