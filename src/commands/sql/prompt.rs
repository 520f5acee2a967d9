//! The prompt: history, completion, commands that begin with a backslash, paging.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result};
use dressage_segmenter::{Outcome as StatementOutcome, Session};
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Editor};

use super::completion::PromptHelper;
use super::{ResultFormat, SqlArgs, describe, result, text};
use crate::commands::Context;
use crate::failure::{Failure, Outcome};
use crate::output::counted;
use crate::settings::{Settings, set};

/// Rows that a query at the prompt gives unless `--row-limit` says otherwise: nobody reads more.
const ROWS_AT_PROMPT: u64 = 10_000;

/// Lines of history kept.
const HISTORY_LINES: usize = 5_000;

const HELP: &str = "\
  SELECT … ;          a query; it may go over several lines and ends with a semicolon
  CREATE VIEW … ;     a view for this session
  SET grader = 'x' ;  a variable that views read

  \\d                  tables and views        \\d NAME     columns of one
  \\df                 functions               \\set        variables in force
  \\timing             say how long it took    \\format F   table, json, ndjson, csv
  \\i FILE             run a file              \\q          leave";

/// State of a running prompt.
struct Prompt<'a> {
    context: &'a Context,
    settings: &'a Settings,
    session: Session,
    format: ResultFormat,
    timing: bool,
}

pub(super) fn run(
    context: &Context,
    settings: &Settings,
    args: &SqlArgs,
    first: &str,
    format: ResultFormat,
) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let row_limit = args.row_limit.unwrap_or(ROWS_AT_PROMPT);
    let (session, names) = runtime.block_on(async {
        let session = super::open(context, settings, args, Some(row_limit)).await?;
        let names = names(&session).await?;
        anyhow::Ok((session, names))
    })?;
    let mut prompt = Prompt { context, settings, session, format, timing: args.timing };
    if !first.trim().is_empty() {
        runtime.block_on(prompt.text(first))?;
    }
    let mut editor: Editor<PromptHelper, DefaultHistory> = Editor::new().context("cannot read from the terminal")?;
    editor.set_completion_type(CompletionType::List);
    editor.set_max_history_size(HISTORY_LINES)?;
    editor.set_helper(Some(PromptHelper::new(names)));
    let history = history_file(settings);
    if let Some(file) = &history {
        // there is none the first time
        let _ = editor.load_history(file);
    }
    context.output.note(&format!("{} — \\? for help, \\q to leave", settings.store));
    loop {
        match editor.readline("dressage> ") {
            Ok(line) => {
                let line = line.trim();
                if line.is_empty() {
                    continue;
                }
                editor.add_history_entry(line)?;
                if matches!(line, "\\q" | "exit" | "quit" | "exit;" | "quit;") {
                    break;
                }
                // an error ends the statement, not the prompt
                if let Err(error) = runtime.block_on(prompt.line(line)) {
                    let _ = crate::failure::report(&error);
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error).context("cannot read from the terminal"),
        }
    }
    if let Some(file) = &history {
        save_history(&mut editor, file);
    }
    Ok(Outcome::Done)
}

/// Names of tables, columns and functions, for completion.
async fn names(session: &Session) -> Result<Vec<String>> {
    let mut names = session.table_names();
    for table in session.tables().await? {
        names.extend(table.columns.into_iter().map(|column| column.name));
    }
    names.extend(session.functions().into_keys().map(|name| format!("{name}(")));
    Ok(names)
}

impl Prompt<'_> {
    async fn line(&mut self, line: &str) -> Result<()> {
        let Some(command) = line.strip_prefix('\\') else {
            if matches!(line, "help" | "help;") {
                return self.context.output.text(HELP);
            }
            return self.statements(line).await;
        };
        if let Some(text) = describe::command(&self.session, command).await? {
            return self.page(text.as_bytes());
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim().trim_end_matches(';');
        match (name.trim_end_matches(';'), rest) {
            ("?" | "h" | "help", _) => self.context.output.text(HELP),
            ("timing", _) => {
                self.timing = !self.timing;
                self.context.output.text(if self.timing { "timing is on" } else { "timing is off" })
            }
            ("format", name) => {
                use clap::ValueEnum;
                match ResultFormat::from_str(name, true) {
                    Ok(ResultFormat::Parquet) | Err(_) => {
                        Err(Failure::invalid("\\format takes table, json, ndjson or csv"))
                    }
                    Ok(format) => {
                        self.format = format;
                        Ok(())
                    }
                }
            }
            ("i", file) if !file.is_empty() => {
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
                self.text(&text).await
            }
            (other, _) => Err(Failure::invalid(format!("there is no command \\{other}; \\? lists them"))),
        }
    }

    /// Runs a file: statements, and commands that look at something.
    async fn text(&self, text: &str) -> Result<()> {
        for part in text::parts(text) {
            match part {
                text::Part::Statements(statements) => self.statements(statements).await?,
                text::Part::Command(command) => {
                    let said = describe::command(&self.session, command).await?;
                    self.page(said.ok_or_else(|| super::not_here(command))?.as_bytes())?;
                }
            }
        }
        Ok(())
    }

    /// Runs statements one after the other; Ctrl-C stops the one that runs.
    async fn statements(&self, text: &str) -> Result<()> {
        let run = self.session.script::<anyhow::Error>(text, async |outcome| match outcome {
            StatementOutcome::Done(what) => self.context.output.text(&what),
            StatementOutcome::Rows(rows) => {
                let started = Instant::now();
                let mut page = Vec::new();
                let printed = result::write(rows, self.format, &mut page).await?;
                self.page(&page)?;
                if printed.truncated {
                    self.context.output.note(&format!("cut after {} (--row-limit)", counted(printed.rows, "row")));
                }
                if self.timing {
                    self.context.output.note(&result::timing(printed.rows, started.elapsed()));
                }
                Ok(())
            }
        });
        tokio::select! {
            done = run => done,
            _ = tokio::signal::ctrl_c() => Err(Failure::invalid("stopped")),
        }
    }

    /// Through the pager if it is longer than the screen.
    fn page(&self, text: &[u8]) -> Result<()> {
        let lines = text.iter().filter(|b| **b == b'\n').count();
        let tall = terminal_rows().is_some_and(|rows| lines + 2 > rows);
        if !tall || !std::io::stdout().is_terminal() {
            return self.context.output.text(&String::from_utf8_lossy(text));
        }
        let from_env = std::env::var("PAGER").ok().filter(|pager| !pager.is_empty());
        let pager = set(&self.settings.sql.pager).map(str::to_owned).or(from_env);
        let pager = pager.unwrap_or_else(|| "less -SFRX".to_owned());
        let child = Command::new("sh").arg("-c").arg(&pager).stdin(Stdio::piped()).spawn();
        match child {
            Ok(mut child) => {
                if let Some(mut stdin) = child.stdin.take() {
                    // leaving the pager before the end is how pagers are used
                    let _ = stdin.write_all(text);
                }
                child.wait().with_context(|| format!("the pager `{pager}` did not end"))?;
                Ok(())
            }
            Err(_) => self.context.output.text(&String::from_utf8_lossy(text)),
        }
    }
}

/// Height of the terminal, where there is one.
fn terminal_rows() -> Option<usize> {
    // SAFETY: an all-zero `winsize` is a valid value, and the call writes nothing but it
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) == 0).then_some(size)
    }?;
    (size.ws_row > 0).then_some(usize::from(size.ws_row))
}

fn history_file(settings: &Settings) -> Option<PathBuf> {
    if let Some(file) = set(&settings.sql.history) {
        return Some(PathBuf::from(file));
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state")))?;
    Some(state.join("dressage/history"))
}

fn save_history(editor: &mut Editor<PromptHelper, DefaultHistory>, file: &std::path::Path) {
    // a history that cannot be kept is no reason to fail after the work is done
    if let Some(folder) = file.parent() {
        let _ = std::fs::create_dir_all(folder);
    }
    let _ = editor.save_history(file);
}
