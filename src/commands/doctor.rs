//! `dressage doctor`: is the store's place fit for a store, and what to do if not.

use anyhow::{Error, Result};
use clap::Args;
use dressage_schemas::ErrorKind;
use dressage_storage::Lake;
use dressage_storage::maintain::{Finding, FindingStatus, doctor};

use super::Context;
use super::store_access::block_on;
use crate::failure::{self, Outcome};
use crate::output::{Output, Paint};

/// Check the store's place: endpoint, keys, conditional writes, clock, space
///
/// Writes and removes a few small objects. Each finding says what to do about it. The exit code is 8 if one failed;
/// where the store cannot even be opened, it is that of the reason.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage doctor
  dressage doctor --store s3://bucket/lake --s3-endpoint https://minio.internal:9000 --json")]
pub(crate) struct DoctorArgs {}

pub(crate) fn run(context: &Context, _: &DoctorArgs) -> Result<Outcome> {
    let settings = context.layers.settings()?;
    let findings = block_on(async {
        match Lake::open(context.store_settings(&settings)).await {
            Ok(lake) => Ok(Ok(doctor(&lake).await)),
            Err(error) => Ok(Err(Error::from(error))),
        }
    })?;
    match findings {
        Ok(findings) => {
            print(context.output, &findings)?;
            let failed = findings.iter().any(|f| f.status == FindingStatus::Failed);
            Ok(if failed { Outcome::Findings } else { Outcome::Done })
        }
        Err(error) => {
            print(context.output, &[unopened(&error)])?;
            Err(error)
        }
    }
}

/// A store that does not open is a finding too, so that `--json` has one form.
fn unopened(error: &Error) -> Finding {
    let advice = match failure::kind_of(error) {
        ErrorKind::NotFound => "make it with `dressage store init`, which also tries whether the place keeps its word",
        ErrorKind::Unavailable => "check the address, the network and the AWS_* variables; then try again",
        ErrorKind::Invalid => "change what the message names",
        _ => "see what is at the place; do not write to it meanwhile",
    };
    let detail: Vec<String> = error.chain().map(ToString::to_string).collect();
    Finding {
        check: "store",
        status: FindingStatus::Failed,
        detail: detail.join(": "),
        what_to_do: Some(advice.to_owned()),
    }
}

fn print(output: Output, findings: &[Finding]) -> Result<()> {
    if output.json {
        return output.json(&findings);
    }
    let paint = output.paint();
    let mut text = String::new();
    for finding in findings {
        let line = format!("{}  {}: {}\n", mark(finding.status, paint), paint.bold(finding.check), finding.detail);
        text.push_str(&line);
        if let Some(what) = &finding.what_to_do {
            text.push_str(&format!("         {what}\n"));
        }
    }
    output.text(&text)
}

fn mark(status: FindingStatus, paint: Paint) -> String {
    match status {
        FindingStatus::Ok => paint.green("ok     "),
        FindingStatus::Warning => paint.yellow("look   "),
        FindingStatus::Failed => paint.red("failed "),
        FindingStatus::Skipped => paint.dim("skipped"),
    }
}
