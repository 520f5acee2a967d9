//! A plan as text.

use serde_json::Value;

use crate::output::{self, Paint, counted, grouped};

/// Train steps that are shown one by one.
const STEPS_SHOWN: usize = 8;

/// The page of one plan, from its summary and, where it was just made, its train steps.
pub(super) fn plan(summary: &Value, steps: Option<&Value>, paint: Paint) -> String {
    let count = |key: &str| summary[key].as_u64().unwrap_or(0);
    let many = |key: &str, what: &str| counted(count(key), what);
    let text = |key: &str| summary[key].as_str().unwrap_or("-").to_owned();
    let run = summary["run_id"].as_str().map_or_else(|| "all runs".to_owned(), |run| format!("run {run}"));
    let mut out = format!(
        "{} of {run}: {}, {}\n",
        paint.bold(&format!("plan {}", text("plan_id"))),
        text("estimator"),
        text("loss_aggregation")
    );
    if let Some(after) = summary["after_plan_id"].as_str() {
        out.push_str(&format!("after plan {after}, which has {} of it\n", many("already_trained", "trajectory")));
    }
    out.push_str(&format!(
        "{} of {}; {}, {}, {}, {}, {} of them trained\n",
        many("n_train_steps", "train step"),
        range(&summary["trajectories_per_step"], "trajectory"),
        many("n_groups", "group"),
        many("n_trajectories", "trajectory"),
        many("n_samples", "sample"),
        many("n_tokens", "token"),
        grouped(count("n_trained_tokens")),
    ));
    out.push_str(&format!(
        "{} with {} each, {} at most: {} full ({} is possible), ranks differ by {} (at most {})\n",
        many("world_size", "rank"),
        range(&summary["micro_batches_per_rank"], "micro-batch"),
        many("max_tokens_per_micro_batch", "token"),
        percent(&summary["packing_efficiency"]),
        percent(&summary["packing_bound"]),
        percent(&summary["rank_spread_mean"]),
        percent(&summary["rank_spread_max"]),
    ));
    for line in remarks(summary) {
        out.push_str(&format!("{}\n", paint.yellow(&line)));
    }
    out.push_str(&dropped(summary, paint));
    if let Some(steps) = steps.and_then(Value::as_array) {
        out.push_str(&table_of_steps(steps, paint));
    }
    out
}

/// What is not as one would wish it.
fn remarks(summary: &Value) -> Vec<String> {
    let count = |key: &str| summary[key].as_u64().unwrap_or(0);
    let mut lines = Vec::new();
    let rest = &summary["remainder"];
    let left = rest["n_trajectories"].as_u64().unwrap_or(0);
    if left > 0 {
        let of = format!(
            "{} ({}, {}) {} not fill a train step of {}",
            counted(left, "trajectory"),
            counted(rest["n_groups"].as_u64().unwrap_or(0), "group"),
            counted(rest["n_samples"].as_u64().unwrap_or(0), "sample"),
            if left == 1 { "does" } else { "do" },
            grouped(count("global_batch_size")),
        );
        lines.push(if rest["policy"] == "carry" {
            format!("{of}: left for the plan that goes on --after this one")
        } else {
            format!("{of}: there is a smaller last one")
        });
    }
    if count("oversize_samples") > 0 {
        lines.push(format!(
            "longer than a micro-batch may be: {}, each with one to itself (--set max_segment_tokens cuts them)",
            counted(count("oversize_samples"), "sample")
        ));
    }
    if count("empty_micro_batches") > 0 {
        lines.push(format!(
            "{} with nothing in it: there are fewer samples than ranks",
            counted(count("empty_micro_batches"), "micro-batch")
        ));
    }
    if count("all_masked_samples") > 0 {
        lines.push(format!(
            "{} without a trained token: the loss weight is 0",
            counted(count("all_masked_samples"), "sample")
        ));
    }
    lines
}

/// Who was left out, by reason.
pub(super) fn dropped(summary: &Value, paint: Paint) -> String {
    let reasons = summary["dropped"].as_array().map(Vec::as_slice).unwrap_or_default();
    if reasons.is_empty() {
        return "nothing was left out\n".to_owned();
    }
    let rows = reasons.iter().map(|d| {
        let n = |key: &str| grouped(d[key].as_u64().unwrap_or(0));
        let how = if d["has_samples"].as_bool().unwrap_or(false) { "kept" } else { "left out" };
        vec![
            d["reason"].as_str().unwrap_or("-").to_owned(),
            how.to_owned(),
            n("n_trajectories"),
            n("n_groups"),
            n("n_lost_tokens"),
        ]
    });
    let headers = ["reason", "", "trajectories", "groups", "tokens lost"];
    let table = output::table(&headers, &[2, 3, 4], rows);
    format!("\n{}\n{table}\n", paint.bold("left out, or without effect"))
}

fn table_of_steps(steps: &[Value], paint: Paint) -> String {
    let rows = steps.iter().take(STEPS_SHOWN).map(|s| {
        let n = |key: &str| grouped(s[key].as_u64().unwrap_or(0));
        vec![
            n("train_step"),
            n("n_trajectories"),
            n("n_samples"),
            n("n_tokens"),
            n("micro_batches_per_rank"),
            percent(&s["packing_efficiency"]),
            percent(&s["rank_spread"]),
        ]
    });
    let headers = ["train step", "trajectories", "samples", "tokens", "micro-batches", "full", "ranks differ"];
    let table = output::table(&headers, &[0, 1, 2, 3, 4, 5, 6], rows);
    let more = match steps.len().saturating_sub(STEPS_SHOWN) {
        0 => String::new(),
        more => format!("{}\n", paint.dim(&format!("and {more} more (--json has all)"))),
    };
    format!("\n{table}\n{more}")
}

fn range(pair: &Value, what: &str) -> String {
    let at = |i: usize| pair[i].as_u64().unwrap_or(0);
    if at(0) == at(1) { counted(at(0), what) } else { format!("{} to {}", grouped(at(0)), counted(at(1), what)) }
}

/// A share as percent.
pub(super) fn percent(share: &Value) -> String {
    format!("{:.1} %", 100.0 * share.as_f64().unwrap_or(0.0))
}
