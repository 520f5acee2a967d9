//! One file a command. Each takes its arguments and a [`Context`], and calls the rooms.

pub(crate) mod batches;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod ingest;
pub(crate) mod ls;
pub(crate) mod plan;
pub(crate) mod plot;
pub(crate) mod reference_pages;
pub(crate) mod replay;
pub(crate) mod show;
pub(crate) mod sql;
pub(crate) mod stats;
pub(crate) mod store;
pub(crate) mod store_access;
pub(crate) mod synth;
pub(crate) mod train_args;

use anyhow::Result;

use crate::cli::{Cli, Command, GlobalArgs};
use crate::failure::Outcome;
use crate::output::Output;
use crate::settings::Layers;

/// What every command needs: its settings so far, and where to write.
#[derive(Debug)]
pub(crate) struct Context {
    /// Defaults, file, environment and global flags; a command adds its own flags.
    pub(crate) layers: Layers,
    /// Where to write and how.
    pub(crate) output: Output,
}

impl Context {
    fn new(global: &GlobalArgs) -> Result<Self> {
        let mut layers = Layers::load(global.config.as_deref())?;
        layers.flag("store", "--store", global.store.as_ref())?;
        layers.flag("s3.endpoint", "--s3-endpoint", global.s3_endpoint.as_ref())?;
        layers.flag("s3.region", "--region", global.region.as_ref())?;
        layers.flag("s3.allow_http", "--allow-http", global.allow_http.then_some(true))?;
        Ok(Self { layers, output: Output::new(global) })
    }
}

/// Runs one command.
pub(crate) fn run(cli: Cli) -> Result<Outcome> {
    let context = Context::new(&cli.global)?;
    match cli.command {
        Command::Ingest(args) => ingest::run(context, &args),
        Command::Sql(args) => sql::run(context, &args),
        Command::Ls(args) => ls::run(context, &args),
        Command::Show(args) => show::run(context, &args),
        Command::Stats(args) => stats::run(context, &args),
        Command::Export(args) => export::run(context, &args),
        Command::Batches(args) => batches::run(context, &args),
        Command::Replay(args) => replay::run(&context, &args),
        Command::Explain(args) => explain::run(&context, &args),
        Command::Plan(args) => plan::run(context, &args),
        Command::Train(args) => crate::training::run(&context, &args),
        Command::Plot(args) => plot::run(context, &args),
        Command::Store(args) => store::run(&context, &args),
        Command::Doctor(args) => doctor::run(&context, &args),
        Command::Synth(args) => synth::run(&context, &args),
        Command::Config(args) => config::run(&context, &args),
        Command::Completions(args) => completions::run(&args),
        Command::ReferencePages(args) => reference_pages::run(&args),
    }
}
