//! A tiny model gets better at a game by policy gradient over its own recorded games: played, ingested, planned, trained,
//! published, and played again with the published weights.

use anyhow::{Context as _, Result, ensure};
use dressage_trainer::{Folder, Model, ModelConfig, ModelOptions};

use super::{Setting, game, report};
use crate::whole::local;

const ROUNDS: usize = 6;
const GAMES_PER_DIGIT: usize = 24;

/// Mean rewards of all rounds, the first before any training.
fn rewards(seed: u64) -> Result<Vec<f64>> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 0)?;
    let options = ModelOptions { trainable: false, ..ModelOptions::default() };
    dressage_trainer::seed(i64::try_from(seed)?);
    let mut policy = Model::random(ModelConfig::load(&Folder::at(setting.model()))?, 0.1, options)?;
    let shape = ["--global-batch-size", "48", "--max-tokens-per-micro-batch", "4096"];
    let init_seed = format!("weights.init_seed={seed}");
    let more = ["--set", &init_seed, "--set", "weights.init_deviation=0.1", "--set", "optimizer.weight_decay=0.0"];
    let mut rewards = Vec::new();
    for round in 0..ROUNDS {
        let games = game::play(&policy, GAMES_PER_DIGIT, seed * 1_000 + round as u64)?;
        rewards.push(game::mean_reward(&games));
        setting.ingest(&games, round + 1)?;
        let trained = report(&setting.dressage, &setting.args("learner", &[&shape[..], &more].concat()))?;
        ensure!(trained["train_steps"] == 5, "{trained}");
        policy = Model::load(&Folder::at(setting.out("learner")), options)?;
    }
    let games = game::play(&policy, GAMES_PER_DIGIT, seed * 1_000 + ROUNDS as u64)?;
    rewards.push(game::mean_reward(&games));
    let recorded = setting.metric("learner", "reward_mean")?;
    let last = recorded.values().last().context("metrics")?;
    ensure!(*last > rewards[0], "the metrics do not show it: {recorded:?}");
    Ok(rewards)
}

#[test]
fn a_tiny_model_learns_to_count_from_its_own_games() {
    for seed in 0..3 {
        let rewards = rewards(seed).expect("played and trained");
        eprintln!("seed {seed}: mean reward by round {rewards:.3?}");
        let (before, after) = (rewards[0], rewards[ROUNDS]);
        assert!(before < 0.2 && after > before + 0.3, "seed {seed}: {rewards:?}");
    }
}
