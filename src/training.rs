//! `dressage train` in the binary without libtorch: hands over to `dressage-train`, which lies beside it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context as _, Result};
use dressage_schemas::ErrorKind;

use crate::commands::Context;
use crate::commands::train_args::TrainArgs;
use crate::failure::{Failure, Outcome};

/// The binary that trains.
const TRAINING: &str = "dressage-train";

/// Becomes `dressage-train`, with the same arguments. Returns only where that cannot be.
pub(crate) fn run(_context: &Context, _args: &TrainArgs) -> Result<Outcome> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let training = own.with_file_name(TRAINING);
    let error = Command::new(&training).args(std::env::args_os().skip(1)).exec();
    if error.kind() == std::io::ErrorKind::NotFound {
        return Err(Failure::not_found(format!(
            "{} is not there: this is a build without training; build with the feature `train`, which is on by default",
            training.display()
        )));
    }
    Err(error).with_context(|| format!("cannot start {}", training.display()))
}

/// Errors of the trainer room do not occur here.
pub(crate) fn kind_of(_cause: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    None
}
