//! Plays the counting game with a model, and writes the games as rollouts: `docs/demo/learn.sh` goes around with it.
//!
//! `counting init DIR` makes the folder of a model (its `config.json`); `counting play DIR FILE ROUND` plays and prints the
//! mean reward.

mod game;

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use dressage_trainer::{Folder, Model, ModelConfig, ModelOptions};

/// Games of a round, for each of ten digits.
const GAMES_PER_DIGIT: usize = 24;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["init", folder] => {
            std::fs::create_dir_all(folder)?;
            let config = serde_json::to_string_pretty(&game::model_config())?;
            Ok(std::fs::write(Path::new(folder).join("config.json"), config)?)
        }
        ["play", folder, file, round] => play(Path::new(folder), Path::new(file), round.parse().context("ROUND")?),
        _ => bail!("counting init DIR | counting play DIR FILE ROUND"),
    }
}

fn play(folder: &Path, file: &Path, round: usize) -> Result<()> {
    let files = Folder::at(folder);
    let options = ModelOptions { trainable: false, ..ModelOptions::default() };
    let marker = std::fs::read(folder.join("dressage.json")).ok();
    let (model, weight_version) = match marker {
        None => {
            // nobody trained it yet: the weights that `dressage train` begins with, too
            dressage_trainer::seed(0);
            (Model::random(ModelConfig::load(&files)?, 0.1, options)?, "untrained".to_owned())
        }
        Some(marker) => {
            let marker: serde_json::Value = serde_json::from_slice(&marker)?;
            (Model::load(&files, options)?, marker["weight_version"].as_str().context("a version")?.to_owned())
        }
    };
    let games = game::play(&model, GAMES_PER_DIGIT, round as u64)?;
    game::write(&games, round, &weight_version, file)?;
    println!("round {round}: weights {weight_version}, mean reward {:.3}", game::mean_reward(&games));
    Ok(())
}
