//! `dressage doctor`: is the store's place fit for a store, and what to do if not.

use anyhow::Result;
use clap::Args;
use dressage_storage::doctor::{self, Status};

use super::Context;
use super::store_access::block_on;
use crate::failure::Outcome;
use crate::output::Paint;

/// Check the store's place: endpoint, keys, conditional writes, clock, space
///
/// Writes and removes a few small objects. Each finding says what to do about it. The exit code is 8 if one is bad.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage doctor
  dressage doctor --store s3://bucket/lake --s3-endpoint https://minio.internal:9000 --json")]
pub(crate) struct DoctorArgs {}

pub(crate) fn run(context: &Context, _: &DoctorArgs) -> Result<Outcome> {
    let settings = context.layers.settings()?;
    let findings = block_on(async { Ok(doctor::examine(context.store_settings(&settings)).await) })?;
    let bad = findings.iter().any(|f| f.status == Status::Bad);
    if context.output.json {
        context.output.json(&findings)?;
    } else {
        let paint = context.output.paint();
        let mut text = String::new();
        for finding in &findings {
            text.push_str(&format!("{} {}: {}\n", mark(finding.status, paint), paint.bold(&finding.check), finding.detail));
            if let Some(what) = &finding.what_to_do {
                text.push_str(&format!("       {what}\n"));
            }
        }
        context.output.text(&text)?;
    }
    Ok(if bad { Outcome::Findings } else { Outcome::Done })
}

fn mark(status: Status, paint: Paint) -> String {
    match status {
        Status::Good => paint.green("good  "),
        Status::Warning => paint.yellow("look  "),
        Status::Bad => paint.red("bad   "),
    }
}
