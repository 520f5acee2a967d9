//! `dressage completions`: shell completions from the same definitions as the parser.

use std::io::{self, Write};

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Outcome;

/// Print shell completions
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage completions bash > ~/.local/share/bash-completion/completions/dressage
  dressage completions zsh > ~/.zfunc/_dressage
  dressage completions fish > ~/.config/fish/completions/dressage.fish")]
pub(crate) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs) -> Result<Outcome> {
    // generated into memory first: the generator panics on a closed pipe
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dressage", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(Outcome::Done)
}
