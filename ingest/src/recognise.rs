//! Names what a source is that no importer reads: a format that is not supported yet, or no rollout at all. A person
//! who pointed at a folder learns of every file in it what it is.

use serde_json::Value;

use crate::importer::{Shape, Sniff};
use crate::records::excerpt;

/// How a source looks, and what that means.
struct Mark {
    what: &'static str,
    is: fn(&Sniff<'_>) -> bool,
}

/// Rollout formats that are known by name and not read yet.
const NOT_READ_YET: &[Mark] = &[
    Mark {
        what: "an ATIF trajectory",
        is: |s| {
            text(s, "schema_version").is_some_and(|v| v.starts_with("ATIF"))
                || s.has_all(&["schema_version", "session_id", "agent", "steps"])
        },
    },
    Mark { what: "harbor traces", is: |s| s.has_all(&["conversations", "agent", "task", "episode"]) },
    Mark { what: "ShareGPT conversations", is: |s| s.has("conversations") },
    Mark { what: "a Codex CLI rollout", is: |s| s.has_all(&["timestamp", "type", "payload"]) },
    Mark {
        what: "a Gemini CLI chat",
        is: |s| s.has_all(&["sessionId", "projectHash"]) || (s.has_all(&["sessionId", "messages"]) && !s.has("uuid")),
    },
    Mark { what: "a pi or openclaw session", is: |s| text(s, "type") == Some("session") && s.has("cwd") },
    Mark {
        what: "openclaw telemetry",
        is: |s| s.has_all(&["type", "ts"]) && (s.has("sessionKey") || s.has("agentId") || s.has("runId")),
    },
    Mark { what: "an rLLM trajectory", is: |s| s.has_all(&["task", "reward", "steps"]) },
    Mark {
        what: "openclaw telemetry",
        is: |s| text(s, "type").is_some_and(|t| t.starts_with("message.")) && s.has("channel"),
    },
    Mark {
        what: "an OpenHands SDK event log",
        is: |s| s.has("kind") && (s.has("source") || s.has("llm_message") || s.has("system_prompt")),
    },
    Mark {
        what: "an OpenHands SDK conversation state",
        is: |s| s.has_all(&["agent", "workspace"]) || s.has_all(&["agent", "persistence_dir"]),
    },
    Mark {
        what: "OpenHands evaluation output",
        is: |s| {
            s.has_all(&["instance_id", "history"])
                || s.has_all(&["instance_id", "instruction", "test_result"])
                || s.has_all(&["id", "metadata", "history"])
        },
    },
    Mark {
        what: "an OpenHands event log",
        is: |s| {
            s.has_all(&["id", "timestamp", "source"]) && (s.has("action") || s.has("observation") || s.has("message"))
        },
    },
    Mark {
        what: "a mini-swe-agent trajectory",
        is: |s| {
            text(s, "trajectory_format").is_some_and(|f| f.starts_with("mini-swe-agent"))
                || s.has_all(&["info", "messages"])
        },
    },
    Mark {
        what: "a bare list of chat messages (early mini-swe-agent)",
        is: |s| s.root_is_array && s.has_all(&["role", "content"]),
    },
    Mark { what: "OpenHands resolver output", is: |s| s.has_all(&["issue", "git_patch", "history"]) },
    Mark { what: "a Factory Droid session", is: |s| s.has_all(&["type", "id", "sessionTitle"]) },
    Mark { what: "a Kimi CLI session", is: |s| s.has_all(&["type", "protocol_version"]) },
    Mark { what: "a page of hosted prime-rl rollouts", is: |s| s.has_all(&["run_id", "samples"]) },
    Mark { what: "a chat log with one message a row", is: |s| s.has_all(&["role", "message"]) },
    Mark { what: "the steps of one tool run", is: |s| s.has_all(&["step", "observation"]) },
    Mark {
        what: "an opencode session, message or part",
        is: |s| {
            s.has_all(&["id", "type", "text", "time"])
                || s.has("messageID")
                || s.has("sessionID")
                || s.has_all(&["projectID", "directory"])
                || s.has_all(&["info", "parts"])
        },
    },
    Mark {
        what: "an AReaL rollout dump",
        is: |s| {
            s.has_all(&["task_id", "sample_idx", "head_version"])
                || s.has_all(&["seqlen", "prompt_len", "head_version"])
        },
    },
    Mark {
        what: "verifiers results",
        is: |s| s.has_all(&["prompt", "completion", "reward"]) && (s.has("answer") || s.has("task") || s.has("info")),
    },
    Mark { what: "hosted prime-rl results", is: |s| s.has_all(&["problem_id", "sample_id", "prompt", "completion"]) },
    Mark { what: "a verl rollout dump", is: |s| s.has_all(&["input", "output", "score"]) },
    Mark { what: "LiteLLM completion logs", is: |s| s.has_all(&["messages", "response", "kwargs"]) },
    Mark {
        what: "request and response logs of an LLM proxy",
        is: |s| {
            s.has("type") && (s.has("request") || s.has("response"))
                || matches!(text(s, "type"), Some("request" | "response"))
        },
    },
    Mark { what: "a request with its chat completion, one per turn", is: |s| s.has_all(&["request", "response"]) },
    Mark {
        what: "a TGI response with token details",
        is: |s| s.has_all(&["details", "generated_text"]) || s.has("details") && s.has("choices"),
    },
    Mark { what: "a single chat completion without its request", is: |s| s.has("choices") },
    Mark {
        what: "token samples without messages (slime, miles)",
        is: |s| s.has_all(&["tokens", "response_length"]) || s.has_all(&["group_index", "index", "reward"]),
    },
    Mark {
        what: "token arrays without a trajectory",
        is: |s| s.has("token_ids") || s.has("output_ids") || s.has("response_ids") || s.has("prompt_token_ids"),
    },
];

/// JSON that is no rollout.
const NO_ROLLOUT: &[Mark] = &[
    Mark {
        what: "a tokenizer",
        is: |s| s.has_all(&["model", "added_tokens"]) || s.has_all(&["version", "truncation", "added_tokens"]),
    },
    Mark {
        what: "the settings of a tokenizer",
        is: |s| s.has("tokenizer_class") || s.has("chat_template") || s.has("added_tokens_decoder"),
    },
    Mark { what: "SWE-bench predictions (a patch for each task, no rollout)", is: |s| s.has("model_patch") },
    Mark {
        what: "a prompt set: tasks without rollouts",
        is: |s| {
            s.has("prompt") && (s.has("reward_model") || s.has("label") || s.has("data_source") || s.has("reward_fn"))
        },
    },
    Mark { what: "a prompt set: tasks without rollouts", is: |s| s.has_all(&["task_input", "expected_choice"]) },
    Mark { what: "cases of token mismatches, no rollouts", is: |s| s.has_all(&["case_id", "scenario"]) },
    Mark { what: "metadata of a session checkpoint", is: |s| s.has_all(&["checkpoint_id", "session_id"]) },
    Mark { what: "a prompt set: questions with answers", is: |s| s.has("question") && s.has("answer") },
    Mark { what: "NeMo Gym tasks without responses", is: |s| s.has("responses_create_params") && !s.has("response") },
    Mark {
        what: "metrics of NeMo Gym rollouts",
        is: |s| {
            s.has("agent_ref") && (s.has("metrics") || s.has("agent_metrics"))
                || s.keys.iter().any(|k| k.contains("mean/") || k.contains("pass@"))
        },
    },
    Mark {
        what: "metadata of an evaluation",
        is: |s| s.has_all(&["env", "model", "num_examples"]) || s.has("avg_reward"),
    },
    Mark { what: "rewards without trajectories", is: |s| s.has("reward") || s.has("score") || s.has("rewards") },
    Mark {
        what: "an event of an agent without its session",
        is: |s| s.has_all(&["type", "timestamp"]) || s.has_all(&["event", "timestamp"]),
    },
];

fn text<'a>(sniff: &'a Sniff<'_>, key: &str) -> Option<&'a str> {
    let first = sniff.records.first()?;
    let object = first.as_array().and_then(|list| list.first()).unwrap_or(first);
    object.get(key).and_then(Value::as_str)
}

/// What an archive is that must not be read member by member.
pub(crate) fn archive(sniff: &Sniff<'_>) -> Option<&'static str> {
    let any = |test: fn(&str) -> bool| sniff.members.iter().any(|m| test(m));
    if any(|m| m.ends_with("data.pkl")) {
        return Some("a PyTorch file (a zip of pickled tensors): tensors of rollouts in this form are not read yet");
    }
    if any(|m| m == "[Content_Types].xml") {
        return Some("an office document");
    }
    if any(|m| m.starts_with("META-INF/")) {
        return Some("a Java archive");
    }
    if any(|m| m.ends_with(".npy")) {
        return Some("NumPy arrays");
    }
    None
}

/// One sentence for the quarantine row.
pub(crate) fn describe(sniff: &Sniff<'_>) -> String {
    match sniff.shape {
        Shape::Empty => "no bytes".to_owned(),
        Shape::Zip => archive(sniff).map_or_else(|| "a zip archive inside archives".to_owned(), str::to_owned),
        Shape::JsonLines | Shape::JsonDocument => describe_json(sniff),
        Shape::Text => describe_text(sniff.head),
        Shape::Parquet => "a Parquet file with other columns than rollouts have".to_owned(),
        Shape::ArrowFile | Shape::ArrowStream => "an Arrow file with other columns than rollouts have".to_owned(),
        Shape::Binary => describe_binary(sniff.head),
    }
}

fn describe_json(sniff: &Sniff<'_>) -> String {
    if let Some(mark) = NOT_READ_YET.iter().find(|mark| (mark.is)(sniff)) {
        return format!("looks like {}: no importer reads it yet", mark.what);
    }
    if let Some(mark) = NO_ROLLOUT.iter().find(|mark| (mark.is)(sniff)) {
        return format!("looks like {}", mark.what);
    }
    let layout = if sniff.shape == Shape::JsonLines { "JSON lines" } else { "a JSON document" };
    if sniff.keys.is_empty() {
        let root = if sniff.root_is_array { "an array without objects" } else { "no object with keys" };
        return format!("{layout} that is no rollout ({root})");
    }
    let mut keys: Vec<&str> = sniff.keys.iter().map(String::as_str).collect();
    keys.truncate(8);
    format!("{layout} of a kind that is not known; its first keys are {}", keys.join(", "))
}

fn describe_text(head: &[u8]) -> String {
    let text = String::from_utf8_lossy(&head[..head.len().min(4_096)]);
    let lower = text.to_lowercase();
    let starts = |prefix: &str| text.trim_start().starts_with(prefix);
    if starts("version https://git-lfs.github.com/spec/v1") {
        let size = text.lines().find_map(|l| l.strip_prefix("size ")).unwrap_or("unknown");
        return format!("a Git LFS pointer, not the data ({size} bytes); run `git lfs pull`");
    }
    if starts("version https://git-annex") || starts("/annex/objects/") {
        return "a git-annex pointer, not the data; run `git annex get`".to_owned();
    }
    if lower.contains("<placeholder row>") {
        return "placeholder text, no JSON: the publisher left the rows out".to_owned();
    }
    let license = ["apache license", "mit license", "bsd 3-clause", "bsd 2-clause", "permission is hereby granted"];
    if license.iter().any(|l| lower.contains(l)) {
        return "the text of a licence".to_owned();
    }
    let kinds: [(&str, bool); 7] = [
        ("a web page", lower.contains("<!doctype html") || lower.contains("<html")),
        ("a Jinja template", text.contains("{%") && text.contains("%}")),
        ("a Markdown text", starts("# ") || text.contains("\n## ")),
        ("a script", starts("#!") || starts("import ") || starts("from ")),
        ("a tab-separated table", text.lines().take(3).all(|l| l.contains('\t')) && text.contains('\t')),
        ("a comma-separated table", text.lines().take(3).all(|l| l.matches(',').count() >= 2)),
        ("a diff", starts("diff --git") || starts("--- a/")),
    ];
    match kinds.iter().find(|(_, is)| *is) {
        Some((what, _)) => format!("{what}, no rollout"),
        None => format!("text that is no JSON; it starts with {}", excerpt(head)),
    }
}

fn describe_binary(head: &[u8]) -> String {
    let what = match head {
        [0x80, 2..=5, ..] => "a Python pickle, which is never loaded: it may run code",
        [b'S', b'Q', b'L', b'i', b't', b'e', ..] => "an SQLite database",
        [0x89, b'P', b'N', b'G', ..] | [0xff, 0xd8, 0xff, ..] => "an image",
        [b'%', b'P', b'D', b'F', ..] => "a PDF document",
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => "a NumPy array",
        [0x1f, 0x9d, ..] | [b'B', b'Z', b'h', ..] | [0xfd, b'7', b'z', ..] => {
            "a file in a compression that is not read (gzip, zstd and zip are)"
        }
        [b'T', b'R', b'X', b'P', ..] => "a Trinity-RFT experience buffer: no importer reads it yet",
        _ if head.get(257..262) == Some(b"ustar") => "a tar archive, which is not read; unpack it first",
        _ if head.iter().all(|b| *b == 0) => {
            "zeros only: what was in it was not on the disk when the machine went down"
        }
        _ if is_safetensors(head) => "tensors in safetensors form",
        _ => return format!("binary data of a kind that is not known; it starts with {}", excerpt(head)),
    };
    what.to_owned()
}

fn is_safetensors(head: &[u8]) -> bool {
    let length = head.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    length.is_some_and(|n| n < 100 << 20) && head.get(8) == Some(&b'{')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sniff::look;

    #[test]
    fn what_is_not_data_is_named() {
        let named = |bytes: &[u8]| describe(&look(bytes, true));
        assert!(
            named(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n")
                .contains("Git LFS pointer")
        );
        assert!(named(b"<PLACEHOLDER ROW>\n<PLACEHOLDER ROW>\n").contains("placeholder"));
        assert!(
            named(b"                                 Apache License\n                           Version 2.0\n")
                .contains("licence")
        );
        assert!(named(b"\x80\x04\x95\x00\x00").contains("pickle"));
        assert!(named(br#"{"timestamp":"2026","type":"session_meta","payload":{}}"#).contains("Codex"));
        assert!(
            named(br#"{"data_source":"x","prompt":[{"role":"user","content":"q"}],"reward_model":{}}"#)
                .contains("prompt set")
        );
        assert!(named(br#"{"alpha":1,"beta":2}"#).contains("alpha, beta"));
    }
}
