//! `dressage config`: the settings in force and where each comes from.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::Context;
use crate::failure::Outcome;
use crate::output;

/// Show settings and where each value comes from
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every setting
    ///
    /// The output without --origin is a valid settings file. Credentials are no settings and are not shown.
    #[command(after_long_help = "\
Examples:
  dressage config show --origin
  dressage config show > dressage.toml
  DRESSAGE__SQL__MEMORY_LIMIT=2GiB dressage config show --origin")]
    Show {
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
    },
}

pub(crate) fn run(context: &Context, args: &ConfigArgs) -> Result<Outcome> {
    let ConfigCommand::Show { origin } = args.command;
    // a value that no command would take is an error here too
    let settings = context.layers.settings()?;
    if context.output.json {
        let mut map = Map::new();
        for (key, value, origin) in context.layers.entries() {
            map.insert(key.to_owned(), json!({ "value": value, "origin": origin.to_string() }));
        }
        context.output.json(&Value::Object(map))?;
    } else if origin {
        let paint = context.output.paint();
        let rows = context.layers.entries().map(|(key, value, origin)| {
            let value = if value.is_empty() { paint.dim("(not set)") } else { value };
            vec![key.to_owned(), value, origin.to_string()]
        });
        context.output.text(&output::table(&["setting", "value", "origin"], &[], rows))?;
    } else {
        context.output.text(&toml::to_string(&settings)?)?;
    }
    Ok(Outcome::Done)
}
