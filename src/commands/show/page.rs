//! The page that `dressage show` prints.

use dressage_tokenizer::Tokenizer;
use serde_json::Value;

use super::Shown;
use crate::output::{Paint, counted, grouped};
use crate::rows::Row;

/// Lines of a message that are shown unless `--full` is given.
const LINES_SHOWN: usize = 8;

/// Characters of a line that are shown unless `--full` is given.
const WIDTH_SHOWN: usize = 160;

/// Width of the column of roles.
const ROLE_WIDTH: usize = 11;

/// What to put on the page.
pub(super) struct Look<'a> {
    pub(super) full: bool,
    pub(super) logprobs: bool,
    pub(super) tokenizer: Option<&'a Tokenizer>,
}

/// The whole page.
pub(super) fn render(shown: &Shown, paint: Paint, look: &Look<'_>) -> String {
    let mut out = String::new();
    heading(&mut out, &shown.trajectory, paint);
    for segment in &shown.segments {
        let index = segment.int("segment_index");
        segment_line(&mut out, segment, paint);
        for (position, step) in shown.steps.iter().enumerate() {
            if step.int("segment_index") != index {
                continue;
            }
            step_line(&mut out, step, paint);
            for message in shown.messages.iter().filter(|m| m.int("step_index") == step.int("step_index")) {
                message_lines(&mut out, message, paint, look);
            }
            if let Some(tokens) = shown.tokens.get(position).filter(|t| !t.ids.is_empty()) {
                let text = tokens.render(paint, look.tokenizer, look.logprobs);
                labelled(&mut out, &paint.cyan(&padded("tokens")), text.lines());
            }
        }
    }
    if !shown.rewards.is_empty() {
        out.push_str(&format!("\n{}\n", paint.bold("rewards")));
        for reward in &shown.rewards {
            reward_line(&mut out, reward, paint);
        }
    }
    out
}

fn heading(out: &mut String, row: &Row, paint: Paint) {
    let status = row.cell("status");
    let status = if status == "completed" { paint.green(&status) } else { paint.yellow(&status) };
    let reward = match row.number("reward") {
        Some(_) => row.cell("reward"),
        None => paint.dim("not graded"),
    };
    out.push_str(&format!("{}  {status}  reward {reward}\n", paint.bold(&row.cell("trajectory_id"))));
    let facts = [
        ("run", "run_id"),
        ("instance", "instance_id"),
        ("group", "group_id"),
        ("model", "model"),
        ("agent", "agent"),
        ("parent", "parent_trajectory_id"),
        ("began", "created_at"),
        ("format", "format"),
        ("source", "source"),
        ("labels", "labels"),
    ];
    for (name, column) in facts {
        if let Some(value) = row.text(column).filter(|value| !value.is_empty() && *value != "{}") {
            out.push_str(&format!("  {} {value}\n", paint.dim(&format!("{name:<9}"))));
        }
    }
    let flags = row.texts("flags");
    if !flags.is_empty() {
        out.push_str(&format!("  {} {}\n", paint.dim("flags    "), paint.yellow(&flags.join(", "))));
    }
    let steps = row.int("n_steps").map_or_else(|| "steps unknown".to_owned(), |n| counted(n, "step"));
    out.push_str(&format!(
        "  {} {}, {steps}, {}, {} of them trained\n",
        paint.dim("holds    "),
        counted(row.int("n_segments").unwrap_or(0), "segment"),
        counted(row.int("n_messages").unwrap_or(0), "message"),
        tokens_of(row, "n_tokens", "n_trained_tokens"),
    ));
}

fn tokens_of(row: &Row, all: &str, trained: &str) -> String {
    format!("{}, {}", counted(row.int(all).unwrap_or(0), "token"), grouped(row.int(trained).unwrap_or(0)))
}

fn segment_line(out: &mut String, segment: &Row, paint: Paint) {
    let mut facts = vec![format!("lineage {}", segment.cell("lineage_index"))];
    facts.push(format!("{} of them trained", tokens_of(segment, "n_tokens", "n_trained_tokens")));
    if let Some(inherited) = segment.int("n_inherited_tokens").filter(|n| *n > 0) {
        facts.push(format!("{} taken over", counted(inherited, "token")));
    }
    if let Some(reason) = segment.text("finish_reason") {
        facts.push(format!("ended by {reason}"));
    }
    if !segment.truth("trainable") {
        facts.push("not trainable".to_owned());
    }
    if segment.truth("is_anchor") {
        facts.push("anchor".to_owned());
    }
    let reasons: Vec<&str> = segment.texts("reasons").into_iter().filter(|reason| *reason != "initial").collect();
    let began =
        if reasons.is_empty() { String::new() } else { format!("  began by {}", paint.yellow(&reasons.join(", "))) };
    out.push_str(&format!(
        "\n{}{began}  {}\n",
        paint.bold(&format!("━━ segment {}", segment.cell("segment_index"))),
        paint.dim(&facts.join(" · "))
    ));
}

fn step_line(out: &mut String, step: &Row, paint: Paint) {
    let mut facts = Vec::new();
    let (context, output) = (step.int("n_context_tokens").unwrap_or(0), step.int("n_output_tokens").unwrap_or(0));
    if context + output > 0 {
        facts.push(format!("{} + {}", grouped(context), counted(output, "token")));
    } else if let Some(output) = step.int("usage_output_tokens") {
        facts.push(format!("{} by the provider's count", counted(output, "token")));
    }
    if let Some(version) = step.text("weight_version") {
        facts.push(format!("weights {version}"));
    }
    if let Some(turn) = step.text("turn_id") {
        facts.push(format!("turn {turn}"));
    }
    if step.text("route") == Some("branch") {
        facts.push(format!("branches from step {}", step.cell("base_step")));
    }
    if let Some(reason) = step.text("finish_reason") {
        facts.push(reason.to_owned());
    }
    let flags = step.texts("flags");
    let flags = if flags.is_empty() { String::new() } else { format!("  {}", paint.yellow(&flags.join(", "))) };
    let label = paint.bold(&format!("step {}", step.cell("step_index")));
    out.push_str(&format!("  {label}  {}{flags}\n", paint.dim(&facts.join(" · "))));
}

fn message_lines(out: &mut String, message: &Row, paint: Paint, look: &Look<'_>) {
    let role = message.text("role").unwrap_or("?");
    let label = if message.truth("is_output") { paint.green(&padded(role)) } else { paint.cyan(&padded(role)) };
    let mut lines: Vec<String> = Vec::new();
    if let Some(reasoning) = message.text("reasoning") {
        lines.extend(cut(reasoning, look.full).into_iter().map(|line| paint.dim(&line)));
    }
    if let Some(text) = message.text("text") {
        lines.extend(cut(text, look.full));
    }
    for call in tool_calls(message) {
        lines.extend(cut(&call, look.full).into_iter().map(|line| paint.yellow(&line)));
    }
    if let Some(id) = message.text("tool_call_id") {
        lines.push(paint.dim(&format!("answers {id}")));
    }
    if lines.is_empty() {
        lines.push(paint.dim("(no text)"));
    }
    labelled(out, &label, lines.iter().map(String::as_str));
}

/// Calls in the form `name(arguments)`.
fn tool_calls(message: &Row) -> Vec<String> {
    let calls: Vec<Value> =
        message.text("tool_calls").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    calls
        .iter()
        .map(|call| {
            let function = call.get("function").unwrap_or(call);
            let name = function.get("name").and_then(Value::as_str).unwrap_or("?");
            let arguments = match function.get("arguments") {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Null) | None => String::new(),
                Some(other) => other.to_string(),
            };
            let id = call.get("id").and_then(Value::as_str).map(|id| format!("  {id}")).unwrap_or_default();
            format!("→ {name}({arguments}){id}")
        })
        .collect()
}

fn padded(role: &str) -> String {
    format!("{role:<ROLE_WIDTH$}")
}

/// The first lines of a text, and how much is left out.
fn cut(text: &str, full: bool) -> Vec<String> {
    let text = harmless(text);
    let all: Vec<&str> = text.trim_end().lines().collect();
    if full {
        return all.into_iter().map(str::to_owned).collect();
    }
    let mut lines: Vec<String> = all
        .iter()
        .take(LINES_SHOWN)
        .map(|line| match line.char_indices().nth(WIDTH_SHOWN) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => (*line).to_owned(),
        })
        .collect();
    if all.len() > LINES_SHOWN {
        lines.push(format!("… {} (--full)", counted((all.len() - LINES_SHOWN) as u64, "more line")));
    }
    lines
}

/// Control characters made visible: a recorded message must not drive the terminal of whoever reads it.
pub(super) fn harmless(text: &str) -> std::borrow::Cow<'_, str> {
    let drives = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(drives) {
        return text.into();
    }
    text.chars().filter(|c| *c != '\r').map(|c| if drives(c) { '\u{fffd}' } else { c }).collect::<String>().into()
}

fn labelled<'a>(out: &mut String, label: &str, lines: impl Iterator<Item = &'a str>) {
    for (number, line) in lines.enumerate() {
        let head = if number == 0 { label.to_owned() } else { " ".repeat(ROLE_WIDTH) };
        out.push_str(format!("    {head} {line}").trim_end());
        out.push('\n');
    }
}

fn reward_line(out: &mut String, reward: &Row, paint: Paint) {
    let mut line = format!("  {:<20} {:>8}  {}", reward.cell("grader"), reward.cell("value"), reward.cell("stage"));
    for column in ["parts", "graded_at", "detail"] {
        if let Some(text) = reward.text(column) {
            let shown = cut(text, false);
            line.push_str(&paint.dim(&format!("  {}", shown.join(" "))));
        }
    }
    out.push_str(&line);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_say_how_much_is_left_out() {
        let text = (0..20).map(|i| i.to_string()).collect::<Vec<_>>().join("\n");
        let lines = cut(&text, false);
        assert_eq!(lines.len(), LINES_SHOWN + 1);
        assert_eq!(lines.last().map(String::as_str), Some("… 12 more lines (--full)"));
        assert_eq!(cut(&text, true).len(), 20);
    }

    #[test]
    fn recorded_text_cannot_drive_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\tc\r\n"), "a\u{fffd}[2Jb\tc\n");
        assert_eq!(harmless("plain\n"), "plain\n");
    }

    #[test]
    fn wide_lines_are_cut_between_characters() {
        let lines = cut(&"é".repeat(400), false);
        assert_eq!(lines[0].chars().count(), WIDTH_SHOWN + 1);
    }
}
