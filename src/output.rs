//! How results look: tables or JSON on stdout, notes on stderr, colours only where a person reads them.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use crate::cli::{ColorChoice, GlobalArgs};

/// Where a command writes and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// One JSON document on stdout instead of a table.
    pub(crate) json: bool,
    /// No notes or progress on stderr.
    pub(crate) quiet: bool,
    /// Whether stdout may carry colours.
    pub(crate) color: bool,
}

impl Output {
    /// From the global flags, `NO_COLOR` and whether stdout is a terminal.
    pub(crate) fn new(args: &GlobalArgs) -> Self {
        let color = match args.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                !refused && io::stdout().is_terminal()
            }
        };
        Self { json: args.json, quiet: args.quiet, color }
    }

    /// One JSON document and a newline.
    pub(crate) fn json(self, value: &impl Serialize) -> Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
        writeln!(out)?;
        Ok(())
    }

    /// Text as it is.
    pub(crate) fn text(self, text: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(())
    }

    /// A remark for a person, on stderr; nothing under `--quiet`.
    pub(crate) fn note(self, text: &str) {
        if !self.quiet {
            // a missing stderr is no reason to fail
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }

    /// The painter for stdout.
    pub(crate) fn paint(self) -> Paint {
        Paint { on: self.color }
    }
}

/// Wraps text in terminal colours, or does not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// No colours.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self { on: false }
    }

    /// Whether there are colours.
    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Headings.
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// What matters less.
    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// Tokens that receive gradient; checks that passed.
    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Boundaries and warnings.
    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Failures.
    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Roles and names.
    pub(crate) fn cyan(self, text: &str) -> String {
        self.wrap("36", text)
    }
}

/// A borderless table: headers, then rows; columns named in `right` are numbers.
pub(crate) fn table(headers: &[&str], right: &[usize], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if !headers.is_empty() {
        table.set_header(headers.to_vec());
    }
    for row in rows {
        table.add_row(row);
    }
    for &index in right {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    table.trim_fmt()
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(n: impl Into<i128>) -> String {
    let n: i128 = n.into();
    let digits = n.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if n < 0 {
        out.push('-');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 row`, `2 rows`.
pub(crate) fn counted(n: impl Into<i128>, what: &str) -> String {
    let n: i128 = n.into();
    let s = match n {
        1 => "",
        _ if what.ends_with('x') || what.ends_with("ch") || what.ends_with("sh") => "es",
        _ => "s",
    };
    match what.strip_suffix('y').filter(|_| n != 1) {
        Some(stem) => format!("{} {stem}ies", grouped(n)),
        None => format!("{} {what}{s}", grouped(n)),
    }
}

/// Bytes with a binary unit: `1.5 GiB`.
pub(crate) fn bytes_text(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped_from_the_right() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(-1_234_567), "-1,234,567");
    }

    #[test]
    fn one_is_not_many() {
        let said =
            [(1_u64, "row"), (2, "row"), (1, "trajectory"), (0, "trajectory"), (2, "micro-batch"), (1200, "step")];
        let said = said.map(|(n, what)| counted(n, what)).join(", ");
        assert_eq!(said, "1 row, 2 rows, 1 trajectory, 0 trajectories, 2 micro-batches, 1,200 steps");
    }

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(3 << 30), "3.0 GiB");
    }

    #[test]
    fn colours_are_off_unless_asked_for() {
        assert_eq!(Paint { on: false }.red("x"), "x");
        assert_eq!(Paint { on: true }.red("x"), "\x1b[31mx\x1b[0m");
    }
}
