//! The sections of a settings file that are about training: `docs/train.md` explains each.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use dressage_segmenter::plan::{CostModel, GroupOrder, PlanSettings, Remainder, Scope};
use dressage_trainer::settings::TrainerSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::failure::Failure;
use crate::settings::{ByteCount, TRAIN_KEYS, TimeSpan};

/// Everything that a training run is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrainFile {
    /// Name of the training run: what its checkpoints and metrics are found under, and what a restart goes on with.
    pub(crate) train_run: Option<String>,
    /// Where the weights go at the end: a folder or `s3://…`.
    pub(crate) out: Option<String>,
    /// How often the planned data is gone through. More than one is for supervised warm starts.
    pub(crate) epochs: u32,
    /// Train steps of the run at most; none trains what there is.
    pub(crate) train_steps_max: Option<u64>,
    /// Where weights come from.
    pub(crate) weights: Weights,
    /// How plans are made.
    pub(crate) plan: PlanSection,
    /// When checkpoints are made, and which are kept.
    pub(crate) checkpoints: Checkpoints,
    /// What is written down of each train step.
    pub(crate) metrics: Metrics,
    /// How micro-batches are read.
    pub(crate) data: Data,
    /// The trainer's own sections: `[model]`, `[optimizer]`, `[schedule]`, `[loss]`, `[correction]`, `[kl]`, `[step]`.
    #[serde(skip)]
    pub(crate) trainer: TrainerSettings,
}

impl Default for TrainFile {
    fn default() -> Self {
        Self {
            train_run: None,
            out: None,
            epochs: 1,
            train_steps_max: None,
            weights: Weights::default(),
            plan: PlanSection::default(),
            checkpoints: Checkpoints::default(),
            metrics: Metrics::default(),
            data: Data::default(),
            trainer: TrainerSettings::default(),
        }
    }
}

/// Section `[weights]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Weights {
    /// The model that training begins with: a folder or `s3://…` as Hugging Face lays it out.
    pub(crate) model: Option<String>,
    /// Whether its weights are loaded, or drawn anew from its `config.json` alone.
    pub(crate) init: Init,
    /// The seed of weights that are drawn.
    pub(crate) init_seed: i64,
    /// Their standard deviation.
    pub(crate) init_deviation: f64,
    /// The frozen model that `[kl]` compares with; none takes `model`.
    pub(crate) reference: Option<String>,
}

impl Default for Weights {
    fn default() -> Self {
        Self { model: None, init: Init::Load, init_seed: 0, init_deviation: 0.02, reference: None }
    }
}

/// Where the first weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Init {
    /// The model's files.
    Load,
    /// A random generator.
    Random,
}

/// Section `[plan]`: as the flags of `dressage plan`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PlanSection {
    /// A plan that is there already; none makes plans over what was not trained on yet.
    pub(crate) id: Option<String>,
    /// Trajectories of a train step.
    pub(crate) global_batch_size: Option<u64>,
    /// Tokens of a micro-batch; a longer sample has one to itself.
    pub(crate) max_tokens_per_micro_batch: Option<u64>,
    /// Only this run of rollouts.
    pub(crate) run: Option<String>,
    /// All runs of the store.
    pub(crate) all_runs: bool,
    /// Groups in a random order instead of the recorded one.
    pub(crate) shuffle: bool,
    /// The seed of that order.
    pub(crate) seed: i64,
    /// What to do with groups at the end that do not fill a train step.
    pub(crate) remainder: Remainder,
    /// What a token is taken to cost when micro-batches are balanced.
    pub(crate) cost_linear: f64,
    /// What it costs more for each token of its sample.
    pub(crate) cost_quadratic: f64,
    /// A name, or a `.sql` file.
    pub(crate) estimator: Option<String>,
    /// A `.sql` file.
    pub(crate) filter: Option<String>,
}

impl Default for PlanSection {
    fn default() -> Self {
        let cost = CostModel::default();
        Self {
            id: None,
            global_batch_size: None,
            max_tokens_per_micro_batch: None,
            run: None,
            all_runs: false,
            shuffle: false,
            seed: 0,
            remainder: Remainder::default(),
            cost_linear: cost.linear,
            cost_quadratic: cost.quadratic,
            estimator: None,
            filter: None,
        }
    }
}

impl PlanSection {
    /// What a planner takes.
    ///
    /// # Errors
    /// Where a number is missing that only the user knows.
    pub(crate) fn settings(&self, world_size: u32) -> Result<PlanSettings> {
        let missing = |what: &str, flag: &str| {
            Failure::invalid(format!(
                "[plan] has no {what}: set it there, with {flag}, or name a plan that is there with --plan"
            ))
        };
        let batch = self.global_batch_size.ok_or_else(|| missing("global_batch_size", "--global-batch-size"))?;
        let tokens = self
            .max_tokens_per_micro_batch
            .ok_or_else(|| missing("max_tokens_per_micro_batch", "--max-tokens-per-micro-batch"))?;
        Ok(PlanSettings {
            order: if self.shuffle { GroupOrder::Shuffled } else { GroupOrder::Recorded },
            seed: self.seed,
            remainder: self.remainder,
            cost: CostModel { linear: self.cost_linear, quadratic: self.cost_quadratic },
            ..PlanSettings::new(batch, tokens, world_size)
        })
    }

    /// Which rollouts.
    pub(crate) fn scope(&self) -> Scope {
        match &self.run {
            Some(run) => Scope::Run(run.clone()),
            None if self.all_runs => Scope::AllRuns,
            None => Scope::OnlyRun,
        }
    }
}

/// Section `[checkpoints]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Checkpoints {
    /// After so many train steps; none leaves it to `every`.
    pub(crate) every_train_steps: Option<u64>,
    /// After so long. What was trained since the last checkpoint is trained again after a crash.
    pub(crate) every: TimeSpan,
    /// Newest checkpoints that are kept, at least 1.
    pub(crate) keep_last: usize,
    /// Also kept: those after a multiple of so many train steps.
    pub(crate) keep_every_train_steps: Option<u64>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            every_train_steps: None,
            every: TimeSpan(std::time::Duration::from_secs(15 * 60)),
            keep_last: 2,
            keep_every_train_steps: None,
        }
    }
}

/// Section `[metrics]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Metrics {
    /// Folder of TensorBoard event files; none writes no such files.
    pub(crate) tensorboard: Option<PathBuf>,
    /// Write the trainer's log-probs of every trained token to table `trainer_logprobs`: eight bytes a token.
    pub(crate) logprobs: bool,
}

/// Section `[data]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Data {
    /// Memory for micro-batches that are read ahead.
    pub(crate) prefetch_bytes: ByteCount,
    /// Replay recorded router choices where the model has experts.
    pub(crate) routed_experts: bool,
}

impl Default for Data {
    fn default() -> Self {
        let prefetch = dressage_segmenter::StreamOptions::of_rank(0, 1).prefetch_bytes;
        Self { prefetch_bytes: ByteCount(prefetch), routed_experts: true }
    }
}

/// Sections that the trainer room reads.
const TRAINER_SECTIONS: [&str; 7] = ["model", "optimizer", "schedule", "loss", "correction", "kl", "step"];

/// Where each key was written, for messages: the file, or a flag.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    /// The settings file.
    pub(crate) place: String,
    /// Keys (`section.key`) that `--set` gave.
    pub(crate) by_flag: Vec<String>,
}

impl Written {
    fn of(&self, key: &str) -> &str {
        if self.by_flag.iter().any(|flag| flag == key) { "--set" } else { &self.place }
    }

    /// The message of a section or key that was refused, with the key that is to blame where one alone is.
    fn refusal<T: DeserializeOwned>(
        &self,
        section: Option<&str>,
        table: &Table,
        whole: &toml::de::Error,
    ) -> anyhow::Error {
        let alone = |key: &str, value: &Value| -> Option<String> {
            let mut single = Table::new();
            // what else a section holds may depend on its kind
            if let Some(kind) = table.get("kind").filter(|_| section.is_some()) {
                single.insert("kind".to_owned(), kind.clone());
            }
            single.insert(key.to_owned(), value.clone());
            let wrapped = match section {
                None => single,
                Some(section) => [(section.to_owned(), Value::Table(single))].into_iter().collect(),
            };
            wrapped.try_into::<T>().err().map(|error| error.message().to_owned())
        };
        let culprit = table.iter().find_map(|(key, value)| Some((key, value, alone(key, value)?)));
        let (key, value, message) = match culprit {
            Some((key, value, message)) => (key.clone(), Some(value), message),
            None => (String::new(), None, whole.message().to_owned()),
        };
        let dotted =
            [section.unwrap_or_default(), &key].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
        let place = self.of(&dotted.join("."));
        // the trainer's own messages say all of it already
        if message.starts_with('[') {
            return Failure::invalid(format!("{place}: {message}"));
        }
        let named = match (section, value) {
            (Some(section), Some(value)) => format!("[{section}] {key} = {value}: "),
            (Some(section), None) => format!("[{section}] "),
            (None, Some(value)) if !value.is_table() => format!("{key} = {value}: "),
            _ => String::new(),
        };
        Failure::invalid(format!("{place}: {named}{message}"))
    }
}

impl TrainFile {
    /// From the sections of a settings file.
    ///
    /// # Errors
    /// An unknown key or a value that cannot be, naming section, key and value, and where it was written.
    pub(crate) fn read(mut table: Table, written: &Written) -> Result<Self> {
        let mut trainer = Table::new();
        for section in TRAINER_SECTIONS {
            if let Some(value) = table.remove(section) {
                check_section::<TrainerSettings>(section, &value, written)?;
                trainer.insert(section.to_owned(), value);
            }
        }
        for (section, value) in table.iter().filter(|(_, value)| value.is_table()) {
            check_section::<Self>(section, value, written)?;
        }
        let plain: Table =
            table.iter().filter(|(_, value)| !value.is_table()).map(|(k, v)| (k.clone(), v.clone())).collect();
        plain.clone().try_into::<Self>().map_err(|e| written.refusal::<Self>(None, &plain, &e))?;
        let whole = |error: toml::de::Error| Failure::invalid(format!("{}: {}", written.place, error.message()));
        let mut file: Self = table.try_into().map_err(whole)?;
        file.trainer = trainer.try_into().map_err(whole)?;
        file.check(written)?;
        Ok(file)
    }

    /// Refuses numbers that no run could be with.
    fn check(&self, written: &Written) -> Result<()> {
        let deviation = self.weights.init_deviation;
        let checkpoints = &self.checkpoints;
        let refused = [
            ("epochs", self.epochs == 0, "0", "1 or above"),
            ("train_steps_max", self.train_steps_max == Some(0), "0", "1 or above, or left out"),
            ("checkpoints.keep_last", checkpoints.keep_last == 0, "0", "1 or above"),
            ("checkpoints.every_train_steps", checkpoints.every_train_steps == Some(0), "0", "1 or above, or left out"),
            (
                "checkpoints.keep_every_train_steps",
                checkpoints.keep_every_train_steps == Some(0),
                "0",
                "1 or above, or left out",
            ),
            (
                "checkpoints.every",
                checkpoints.every.0.is_zero(),
                "0",
                "above 0; every_train_steps = 1 is the most often",
            ),
            (
                "metrics.tensorboard",
                self.metrics.tensorboard.as_ref().is_some_and(|folder| folder.as_os_str().is_empty()),
                "empty",
                "a folder, or left out",
            ),
            (
                "weights.init_deviation",
                !(deviation.is_finite() && deviation > 0.0),
                &deviation.to_string(),
                "above 0, such as 0.02",
            ),
        ];
        match refused.into_iter().find(|(_, wrong, ..)| *wrong) {
            Some((key, _, value, expected)) => {
                Err(Failure::invalid(format!("{}: {key} is {value}: it must be {expected}", written.of(key))))
            }
            None => Ok(()),
        }
    }

    /// The same as JSON: what a checkpoint remembers.
    pub(crate) fn to_json(&self) -> Result<serde_json::Value> {
        let mut value = serde_json::to_value(self).context("the settings have no JSON")?;
        value["trainer"] = serde_json::to_value(self.trainer).context("the settings have no JSON")?;
        Ok(value)
    }
}

fn check_section<T: DeserializeOwned>(section: &str, value: &Value, written: &Written) -> Result<()> {
    let alone: Table = [(section.to_owned(), value.clone())].into_iter().collect();
    let Err(error) = alone.try_into::<T>() else { return Ok(()) };
    let empty = Table::new();
    Err(written.refusal::<T>(Some(section), value.as_table().unwrap_or(&empty), &error))
}

/// Sets `section.key` (or a key outside of sections) in a table of sections, reading the text as TOML where it is some.
///
/// # Errors
/// Where the first part is no key of training.
pub(crate) fn set(table: &mut Table, key: &str, text: &str) -> Result<()> {
    let value = format!("value = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| Value::String(text.to_owned()));
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((section, rest)) => {
            let slot = table.entry(section.to_owned()).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = slot else {
                return Err(Failure::invalid(format!("--set {key}: `{section}` is no section")));
            };
            inner.insert(rest.to_owned(), value);
        }
    }
    Ok(())
}

/// Whether a name given with `--set` is one of training and no variable of SQL.
pub(crate) fn is_train_key(key: &str) -> bool {
    let head = key.split_once('.').map_or(key, |(head, _)| head);
    TRAIN_KEYS.contains(&head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TrainFile, String> {
        let table = text.parse::<Table>().expect("TOML");
        let written = Written { place: "train.toml".to_owned(), by_flag: vec!["weights.init_seed".to_owned()] };
        TrainFile::read(table, &written).map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn an_empty_file_is_the_default() {
        let file = read("").expect("reads");
        assert_eq!((file.epochs, file.checkpoints.keep_last), (1, 2));
        let error = file.plan.settings(1).expect_err("nobody said how large a step is").to_string();
        assert!(error.contains("--global-batch-size"), "{error}");
    }

    #[test]
    fn a_wrong_key_is_named_with_its_section() {
        for (text, words) in [
            ("[optimizer]\nlearning_rat = 1.0", ["train.toml: [optimizer]", "learning_rat"]),
            (
                "[optimizer]\nbeta1 = 0.5\nlearning_rate = \"x\"",
                ["train.toml: [optimizer] learning_rate = \"x\"", "f64"],
            ),
            ("[optimizer]\nlearning_rate = -1.0", ["train.toml: [optimizer] learning_rate = -1", "0 or"]),
            ("[plan]\nglobal_batch = 1", ["train.toml: [plan]", "global_batch"]),
            ("[checkpoints]\nevery = \"soon\"", ["train.toml: [checkpoints] every = \"soon\"", "soon"]),
            ("[weights]\ninit_seed = \"x\"", ["--set: [weights] init_seed = \"x\"", "i64"]),
            ("epochs = -1", ["train.toml: epochs = -1", "u32"]),
            ("epochs = 0", ["epochs is 0", "1 or above"]),
            ("[checkpoints]\nkeep_last = 0", ["checkpoints.keep_last is 0", "1 or above"]),
            ("[weights]\ninit_deviation = nan", ["init_deviation is NaN", "above 0"]),
        ] {
            let error = read(text).expect_err(text);
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_given_by_flag_is_read_as_toml_and_else_as_text() {
        let mut table = Table::new();
        for (key, text) in [("optimizer.learning_rate", "1e-5"), ("model.kind", "bf16"), ("epochs", "2")] {
            assert!(is_train_key(key));
            set(&mut table, key, text).expect("set");
        }
        assert!(!is_train_key("grader") && !is_train_key("staleness_keep_versions"));
        let written = Written { place: "flags".to_owned(), by_flag: Vec::new() };
        let file = TrainFile::read(table, &written).expect("reads");
        assert_eq!((file.epochs, file.trainer.optimizer.learning_rate), (2, 1e-5));
    }
}
