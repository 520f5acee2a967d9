//! `dressage train` as a user types it: from rollouts to weights, through deaths, full disks and bad input.

mod bad_input;
mod crash;
#[path = "../../../examples/counting/game.rs"]
mod game;
mod goes_on;
mod lake;
mod learns;
mod leaves;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use dressage_rig::{Dressage, Seed};
use game::Game;
use serde_json::Value;

/// A store with rollouts, and a model to train on them.
struct Setting {
    dressage: Dressage,
    dir: PathBuf,
}

impl Setting {
    /// `n_games` rollouts of random play, so that no model is needed to make them.
    fn make(dressage: Dressage, dir: &Path, n_games: usize) -> Result<Self> {
        let setting = Self { dressage: dressage.with("OMP_NUM_THREADS", "1"), dir: dir.to_owned() };
        std::fs::create_dir_all(setting.model())?;
        std::fs::write(setting.model().join("config.json"), game::model_config().to_string())?;
        setting.ingest(&random_games(&mut Seed::new(7), n_games), 0)?;
        Ok(setting)
    }

    /// Takes games in as one more round.
    fn ingest(&self, games: &[Game], round: usize) -> Result<()> {
        let file = self.dir.join(format!("round-{round}.jsonl"));
        game::write(games, round, "random", &file)?;
        self.dressage.run(&["ingest", &file.display().to_string(), "--quiet"])?.expect_code(0)?;
        Ok(())
    }

    fn model(&self) -> PathBuf {
        self.dir.join("model")
    }

    fn out(&self, run: &str) -> PathBuf {
        self.dir.join("out").join(run)
    }

    /// The arguments of a training run of small steps, with a file of settings after the usual ones.
    fn args(&self, run: &str, more: &[&str]) -> Vec<String> {
        let (model, out) = (self.model().display().to_string(), self.out(run).display().to_string());
        let usual = [
            "train",
            "--json",
            "--model",
            &model,
            "--out",
            &out,
            "--set",
            "weights.init=random",
            "--set",
            "optimizer.learning_rate=1e-2",
        ];
        usual.iter().chain(more).map(|arg| (*arg).to_owned()).collect()
    }

    /// The same with plans of eight rollouts a train step.
    fn planning_args(&self, run: &str, more: &[&str]) -> Vec<String> {
        let shape = ["--global-batch-size", "8", "--max-tokens-per-micro-batch", "32"];
        self.args(run, &[&shape, more].concat())
    }

    /// A metric of a run by train step.
    fn metric(&self, run: &str, metric: &str) -> Result<BTreeMap<i64, f64>> {
        let query = format!(
            "select optimizer_step, value from train_metrics where train_run = '{run}' and metric = '{metric}'"
        );
        let mut found = BTreeMap::new();
        for row in self.dressage.sql(&query)? {
            let step = row["optimizer_step"].as_i64().context("a step")?;
            let value = row["value"].as_f64().context("a value")?;
            ensure!(found.insert(step, value).is_none(), "{run} has {metric} of train step {step} twice");
        }
        Ok(found)
    }

    /// The bytes of the weights that a run published.
    fn weights(&self, run: &str) -> Result<Vec<u8>> {
        let file = self.out(run).join("model.safetensors");
        std::fs::read(&file).with_context(|| format!("no {}", file.display()))
    }

    /// Two runs are the same to the last bit: losses, gradients, rewards and weights.
    fn same(&self, one: &str, other: &str) -> Result<()> {
        for metric in ["loss", "grad_norm", "reward_mean", "trained_tokens"] {
            let (one, other) = (self.metric(one, metric)?, self.metric(other, metric)?);
            ensure!(!one.is_empty() && one == other, "{metric}:\n{one:?}\n{other:?}");
        }
        ensure!(self.weights(one)? == self.weights(other)?, "the weights of {one} and {other} differ");
        Ok(())
    }
}

/// Games in which every token is drawn alike.
fn random_games(seed: &mut Seed, n: usize) -> Vec<Game> {
    (0..n)
        .map(|nth| {
            let digit = (nth / 4 % 10) as i32;
            let answer: Vec<i32> = (0..4).map(|_| seed.below(game::VOCAB_SIZE as u64) as i32).collect();
            Game {
                digit,
                group: nth / 4,
                token_ids: [&[10, digit], answer.as_slice()].concat(),
                logprobs: vec![-(game::VOCAB_SIZE as f32).ln(); 4],
                reward: seed.below(5) as f64 / 4.0,
            }
        })
        .collect()
}

/// The report of a run that ended well.
fn report(dressage: &Dressage, args: &[String]) -> Result<Value> {
    dressage.run(args)?.expect_code(0)?.json()
}
