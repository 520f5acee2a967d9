//! The worked example of `docs/losses.md`, computed again from the page itself.

use dressage_trainer::loss::Objective;
use dressage_trainer::settings::{CorrectionSettings, KlSettings, LossSettings};
use serde::Deserialize;

use crate::losses::made::{Tensors, Tokens, close, number, numbers, objective};

const PAGE: &str = include_str!("../../../../docs/losses.md");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    loss: LossSettings,
    correction: CorrectionSettings,
    kl: KlSettings,
}

/// The page from its example on.
fn example() -> &'static str {
    let (_, example) = PAGE.split_once("## Worked example").unwrap();
    example
}

fn written_objective() -> Objective {
    let (_, rest) = example().split_once("```toml").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let Settings { loss, correction, kl } = toml::from_str(text).unwrap();
    Objective::new(loss, correction, kl).unwrap()
}

/// Rows of tables whose first cell is one of these.
fn rows(first: &[&str]) -> Vec<Vec<&'static str>> {
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let rows = example().lines().filter(|line| line.starts_with('|')).map(cells);
    rows.filter(|row| first.contains(&row[0])).collect()
}

fn value(cell: &str) -> f64 {
    cell.parse().unwrap()
}

/// The tokens of the table, and what it says of each: r, policy, w, kl, loss, gradient.
fn table() -> (Tokens, Vec<Vec<f64>>) {
    let rows = rows(&["a", "b"]);
    assert_eq!(rows.len(), 4);
    let column = |at: usize| rows.iter().map(|row| value(row[at])).collect::<Vec<_>>();
    let tokens = Tokens {
        trainer_logprobs: column(3),
        old_logprobs: column(4),
        logprobs: column(5),
        ref_logprobs: column(6),
        entropy: vec![0.0; 4],
        loss_mask: vec![true; 4],
        segment_of: rows.iter().map(|row| i64::from(row[0] == "b")).collect(),
        advantages: vec![value(rows[0][2]), value(rows[2][2])],
        loss_weights: vec![0.25, 0.25],
    };
    (tokens, rows.iter().map(|row| row[7..].iter().map(|cell| value(cell)).collect()).collect())
}

/// A column of the table as the metric of each token alone.
fn metric_of_each(tokens: &Tokens, objective: &Objective, metric: &str) -> Vec<f64> {
    (0..4)
        .map(|at| {
            let mut alone = tokens.clone();
            alone.loss_mask = (0..4).map(|other| other == at).collect();
            let tensors: Tensors = alone.tensors();
            let metrics = objective.evaluate(&tensors.input()).unwrap().stats.metrics().unwrap();
            metrics.into_iter().find(|(name, _)| *name == metric).unwrap().1
        })
        .collect()
}

#[test]
fn the_table_says_what_the_loss_is() {
    let (tokens, expected) = table();
    let objective = written_objective();
    let tensors = tokens.tensors();
    let (output, gradients) = objective.evaluate_with_gradients(&tensors.input()).unwrap();
    let ratio = metric_of_each(&tokens, &objective, "ratio_mean");
    let weight = metric_of_each(&tokens, &objective, "correction_mean");
    let kl = metric_of_each(&tokens, &objective, "kl");
    let policy = metric_of_each(&tokens, &objective, "policy_loss");
    let policy: Vec<f64> = policy.iter().zip(&weight).map(|(loss, w)| loss / (0.25 * w)).collect();
    let loss = numbers(&output.token_loss);
    let gradient = numbers(&gradients.trainer_logprobs);
    for (at, row) in expected.iter().enumerate() {
        let found = [ratio[at], policy[at], weight[at], kl[at], loss[at], gradient[at]];
        for (found, expected) in found.iter().zip(row) {
            close(*found, *expected, 5.1e-5, &format!("row {at}"));
        }
    }
    let (_, said) = example().split_once("**").unwrap();
    close(number(&output.loss), value(said.split_once("**").unwrap().0), 5.1e-5, "the loss of the step");
}

#[test]
fn the_other_kinds_have_the_gradients_that_the_page_says() {
    let (tokens, _) = table();
    let tensors = tokens.tensors();
    let bounds = "clip_low = 0.2\nclip_high = 0.28";
    for (kind, settings) in [("reinforce", ""), ("cispo", bounds), ("gspo", bounds), ("cross_entropy", "")] {
        let rows = rows(&[&format!("`{kind}`")]);
        let expected: Vec<f64> = rows[0][1..5].iter().map(|cell| value(cell)).collect();
        let objective = objective(&format!("kind = \"{kind}\"\n{settings}"), "", "");
        let (_, gradients) = objective.evaluate_with_gradients(&tensors.input()).unwrap();
        for (found, expected) in numbers(&gradients.trainer_logprobs).iter().zip(expected) {
            close(*found, expected, 5.1e-5, kind);
        }
    }
}

#[test]
fn the_page_names_every_metric_of_a_loss_and_every_default() {
    let (tokens, _) = table();
    let metrics =
        objective("", "kind = \"mask\"", "").evaluate(&tokens.tensors().input()).unwrap().stats.metrics().unwrap();
    for (name, _) in metrics {
        let named = PAGE.contains(&format!("`{name}`")) || (name.starts_with("advantage") && PAGE.contains("`…_std`"));
        assert!(named, "{name}");
    }
    for (kind, low, high) in [("ppo_clip", "0.2", "0.2"), ("gspo", "3e-4", "4e-4"), ("cispo", "1", "4")] {
        let read: LossSettings = toml::from_str(&format!("kind = \"{kind}\"")).unwrap();
        let same = format!("kind = \"{kind}\"\nclip_low = {low}\nclip_high = {high}");
        // a whole number is a float to the file, too
        assert_eq!(read, toml::from_str(&same).unwrap(), "{kind}");
        let row = PAGE.lines().find(|line| line.starts_with(&format!("| `{kind}` |"))).unwrap();
        assert!(row.contains(&format!("`clip_low` {low}")) && row.contains(&format!("`clip_high` {high}")), "{row}");
    }
}
