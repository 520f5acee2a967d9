//! `dressage train`: rollouts of a store to weights.
//!
//! ```text
//!   plans.rs (which) ─▶ feed.rs (micro-batches) ─▶ run.rs (train steps) ─▶ checkpoint.rs ─▶ weights.rs (--out)
//!                                                      └─▶ journal.rs (metrics, log-probs)
//! ```
//!
//! Compiled into `dressage-train` only, which links libtorch: every other command starts without it.
//!
//! Everything is computed on the main thread; reading, planning and writing down go on beside it.

mod checkpoint;
mod feed;
mod file;
mod journal;
mod model_files;
mod page;
mod plans;
mod run;
mod weights;

use std::time::Instant;

use anyhow::{Context as _, Result};
use dressage_schemas::ErrorKind;
use dressage_trainer::metrics::StepMetrics;
use dressage_trainer::settings::{DeviceChoice, TrainerSettings};
use dressage_trainer::{ModelOptions, Progress, Trainer};
use serde_json::{Map, Value, json};

use self::checkpoint::{Publisher, weight_version};
use self::file::{Init, TrainFile, Written};
use self::journal::Journal;
use self::page::Bar;
use self::plans::Plans;
use self::run::{Done, Ended, Run};
use crate::commands::Context;
use crate::commands::store_access::{QueryArgs, runtime, session_settings};
use crate::commands::train_args::TrainArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::settings::{Settings, TRAIN_KEYS};

/// A run's settings, put together.
struct Asked {
    file: TrainFile,
    settings: Settings,
    /// Variables of SQL.
    query: QueryArgs,
    train_run: String,
}

impl Asked {
    fn of(context: &Context, args: &TrainArgs) -> Result<Self> {
        let mut table = context.layers.train().clone();
        let mut written = Written { place: context.layers.train_place(), by_flag: Vec::new() };
        let mut variables = Vec::new();
        for (key, value) in &args.set {
            if file::is_train_key(key) {
                file::set(&mut table, key, value)?;
                written.by_flag.push(key.clone());
            } else if key.contains('.') {
                return Err(Failure::invalid(format!(
                    "--set {key}: there is no such section; the sections of training are {}",
                    TRAIN_KEYS.join(", ")
                )));
            } else {
                variables.push((key.clone(), value.clone()));
            }
        }
        let mut file = TrainFile::read(table, &written)?;
        overlay(&mut file.out, args.out.as_ref());
        overlay(&mut file.train_run, args.train_run.as_ref());
        overlay(&mut file.weights.model, args.model.as_ref());
        overlay(&mut file.plan.id, args.plan.as_ref());
        overlay(&mut file.plan.run, args.run.as_ref());
        overlay(&mut file.plan.estimator, args.estimator.as_ref());
        overlay(&mut file.plan.filter, args.filter.as_ref());
        overlay(&mut file.plan.global_batch_size, args.global_batch_size.as_ref());
        overlay(&mut file.plan.max_tokens_per_micro_batch, args.max_tokens_per_micro_batch.as_ref());
        overlay(&mut file.train_steps_max, args.train_steps_max.as_ref());
        overlay(&mut file.metrics.tensorboard, args.tensorboard.as_ref());
        if let Some(device) = &args.device {
            file.trainer.model.device =
                DeviceChoice::try_from(device.clone()).map_err(dressage_trainer::Error::from)?;
        }
        let train_run = train_run(&file)?;
        let settings = context.layers.settings()?;
        Ok(Self { file, settings, query: QueryArgs { variables, ..QueryArgs::default() }, train_run })
    }
}

fn overlay<T: Clone>(slot: &mut Option<T>, given: Option<&T>) {
    if let Some(given) = given {
        *slot = Some(given.clone());
    }
}

/// The run's name: as given, else the last part of where its weights go.
fn train_run(file: &TrainFile) -> Result<String> {
    let last_part = |out: &str| out.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    let name = file.train_run.clone().or_else(|| file.out.as_deref().map(last_part)).unwrap_or_default();
    if name.is_empty() || name == "." || name == ".." {
        return Err(Failure::invalid(
            "the training run needs a name: --train-run NAME, or --out, whose last part it is",
        ));
    }
    Ok(name)
}

pub(crate) fn run(context: &Context, args: &TrainArgs) -> Result<Outcome> {
    let began = Instant::now();
    let asked = Asked::of(context, args)?;
    asked.file.trainer.check().map_err(dressage_trainer::Error::from)?;
    let model = asked.file.weights.model.clone();
    let model =
        model.ok_or_else(|| Failure::invalid("name the model to begin with: --model DIR, or [weights] model"))?;
    let runtime = runtime()?;
    let handle = runtime.handle().clone();
    let output = context.output;
    let lake = handle.block_on(context.open_lake(&asked.settings))?;
    let store = context.store_settings(&asked.settings);
    let base = weights::open(&model, &store, &handle)?;
    let out = match asked.file.out.as_deref() {
        None => None,
        Some(out) => {
            let out = weights::open_out(out, &asked.train_run, &store, &handle).context("--out cannot be used")?;
            for (what, uri) in [("model", Some(&model)), ("reference", asked.file.weights.reference.as_ref())] {
                if let Some(uri) = uri
                    && weights::is_same_place(out.uri(), uri)
                {
                    return Err(Failure::invalid(format!(
                        "--out is the folder of the {what} ({uri}), which the run would read other weights from when it goes \
                         on: name another"
                    )));
                }
            }
            Some(out)
        }
    };

    let mut publisher = Publisher::open(&handle, &lake, &asked.file, &asked.train_run)?;
    let (trainer, progress) = begin(&asked, &mut publisher, &base, &handle, context)?;
    let tensorboard = asked.file.metrics.tensorboard.as_deref();
    let journal = Journal::open(&handle, &lake, tensorboard, trainer.train_steps())?;
    let stop = {
        let _entered = handle.enter();
        interrupt::listen(output, "stopping after this train step, with a checkpoint (once more ends it at once)", None)
    };
    let session = session_settings(&asked.settings, &asked.query);
    let mut run = Run {
        handle: handle.clone(),
        lake: lake.clone(),
        file: &asked.file,
        trainer,
        progress,
        publisher,
        journal,
        plans: Plans { lake: &lake, file: &asked.file, session, output },
        tokenizer: &base,
        stop: stop.clone(),
        output,
        bar: Bar::new(output),
        done: Done::default(),
        since_checkpoint: (0, Instant::now()),
    };
    let ended = run.train();
    run.bar.finish();
    let ended = ended?;
    let version = weight_version(&asked.train_run, i64::try_from(run.trainer.train_steps()).unwrap_or(i64::MAX));
    let checkpoint_id = run.publisher.newest().map(|row| row.checkpoint_id.clone());
    if let Some(out) = out.as_ref().filter(|_| ended != Ended::Stopped) {
        let named = (asked.train_run.as_str(), version.as_str(), checkpoint_id.as_deref());
        weights::publish(&run.trainer, out, &model_files::Stored(&base), named)?;
        output.note(&format!("weights {version} are at {}", out.uri()));
    }
    if output.json {
        output.json(&report((&run.done, began), ended, &asked, &version, checkpoint_id.as_deref()))?;
    } else {
        output.text(&page::summary(&run.done, ended, output.paint()))?;
    }
    // SIGTERM is how a scheduler says that it is over: what it asked for was done
    Ok(if ended == Ended::Stopped && !stop.by_terminate() { Outcome::Stopped } else { Outcome::Done })
}

/// What the caller should do about an error of the trainer room.
pub(crate) fn kind_of(cause: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    cause.downcast_ref().map(dressage_trainer::Error::kind)
}

/// The trainer, at the beginning of its run or where the newest checkpoint left it.
fn begin(
    asked: &Asked,
    publisher: &mut Publisher<'_>,
    base: &dressage_storage::BlockingFolder,
    handle: &tokio::runtime::Handle,
    context: &Context,
) -> Result<(Trainer, Progress)> {
    let settings = &asked.file.trainer;
    let options = settings.model.options(true).map_err(dressage_trainer::Error::from)?;
    let given = &asked.file.weights;
    let first = |options| match given.init {
        Init::Load => weights::load(base, options),
        Init::Random => weights::random(base, given.init_seed, given.init_deviation, options),
    };
    let frozen = ModelOptions { trainable: false, ..options };
    let reference = match given.reference.as_deref() {
        Some(uri) => {
            let folder = weights::open(uri, &context.store_settings(&asked.settings), handle)?;
            publisher.reference_hash = Some(weights::hash(&folder)?);
            Some(weights::load(&folder, frozen)?)
        }
        None if settings.kl.coefficient > 0.0 => {
            // random weights follow from their seed
            publisher.reference_hash = match given.init {
                Init::Load => Some(weights::hash(base)?),
                Init::Random => None,
            };
            Some(first(frozen)?)
        }
        None => None,
    };
    let mut trainer = Trainer::new(first(options)?, reference, *settings)?;
    let Some(folder) = publisher.files()? else {
        context.output.note(&format!("training run {}: beginning with {}", asked.train_run, base.uri()));
        return Ok((trainer, Progress::new(&asked.train_run)));
    };
    let row = publisher.newest().context("a checkpoint's files without the checkpoint")?;
    let before: Value = serde_json::from_str(&row.settings).unwrap_or_default();
    if let (Some(before), Some(now)) = (before[checkpoint::REFERENCE_HASH].as_str(), &publisher.reference_hash)
        && before != now
    {
        return Err(Failure::invalid(format!(
            "the weights of the reference are not those that training run {} was compared with so far: put them back, or \
             give this one another --train-run",
            asked.train_run
        )));
    }
    let progress = checkpoint::restore(&mut trainer, row, &folder).with_context(|| {
        format!("training run {} cannot go on from checkpoint {}", asked.train_run, row.checkpoint_id)
    })?;
    context.output.note(&format!(
        "training run {}: going on after {} train steps, from checkpoint {}",
        asked.train_run, row.optimizer_step, row.checkpoint_id
    ));
    for difference in differences(&before, &asked.file)? {
        context.output.note(&format!("warning: set differently than before: {difference}"));
    }
    Ok((trainer, progress))
}

/// Settings of training that changed since a checkpoint, a line each. Where the results go is no such change.
fn differences(before: &Value, now: &TrainFile) -> Result<Vec<String>> {
    let after = now.to_json()?;
    let mut found = Vec::new();
    for section in ["weights", "plan"] {
        for (key, now) in after[section].as_object().into_iter().flatten() {
            let before = &before[section][key];
            if before != now {
                found.push(format!("[{section}] {key}: {before} in the checkpoint, {now} now"));
            }
        }
    }
    // those of an earlier release may not be read any more: then there is nothing to compare with
    if let Ok(saved) = serde_json::from_value::<TrainerSettings>(before["trainer"].clone()) {
        found.extend(dressage_trainer::checkpoint::differences(&saved, &now.trainer));
    }
    Ok(found)
}

fn report(
    (done, began): (&Done, Instant),
    ended: Ended,
    asked: &Asked,
    version: &str,
    checkpoint_id: Option<&str>,
) -> Value {
    let metrics = |of: &Option<StepMetrics>| -> Value {
        of.as_ref().map_or(Value::Null, |m| {
            m.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect::<Map<_, _>>().into()
        })
    };
    json!({
        "train_run": asked.train_run,
        "ended": match ended {
            Ended::NothingLeft => "nothing_left",
            Ended::StepsMax => "train_steps_max",
            Ended::Stopped => "stopped",
        },
        "train_steps": done.train_steps,
        "skipped_train_steps": done.skipped,
        "plans": done.plans,
        "tokens": done.tokens,
        "trained_tokens": done.trained_tokens,
        "seconds": done.seconds,
        "input_stall_seconds": done.input_stall_seconds,
        "checkpoint_seconds": done.checkpoint_seconds,
        "wall_seconds": began.elapsed().as_secs_f64(),
        "carried_trajectories": done.carried,
        "weight_version": version,
        "checkpoint_id": checkpoint_id,
        "out": asked.file.out,
        "first": metrics(&done.first),
        "last": metrics(&done.last),
    })
}
