//! What to do about failures that come as text only: libraries put the errors of others into theirs as a message.

use dressage_schemas::ErrorKind;

use crate::error::asks_for_role;

/// Failures that come as text only. What looks like the network or the server is worth a retry; a full disk and a
/// refused credential are not; the rest is reported as a damaged or unexpected state.
pub(crate) fn kind_of_text(text: &str) -> ErrorKind {
    if asks_for_role(text) {
        return ErrorKind::Invalid;
    }
    let said = without_names(text);
    let any = |phrases: &[&str]| phrases.iter().any(|phrase| said.contains(&format!(" {phrase} ")));
    if any(&["no s3 credentials"]) {
        ErrorKind::Invalid
    } else if any(&["no space left", "quota exceeded", "file too large"]) {
        ErrorKind::Exhausted
    } else if any(&[
        "access denied",
        "accessdenied",
        "invalidaccesskeyid",
        "signaturedoesnotmatch",
        "permission denied",
        "read-only file system",
    ]) {
        ErrorKind::Invalid
    } else if any(&["failed to fill whole buffer"]) {
        // a file that ends before its own directory says
        ErrorKind::Corrupt
    } else if any(&TRANSIENT) || has_server_status(&said) {
        ErrorKind::Unavailable
    } else if any(&["not found", "no such file"]) {
        ErrorKind::NotFound
    } else {
        ErrorKind::Internal
    }
}

/// What clients say when the network or the server fails for a while, as [`without_names`] writes it.
const TRANSIENT: [&str; 31] = [
    "connection reset",
    "connection refused",
    "connection closed",
    "connection aborted",
    "connection error",
    "connection failed",
    "connect error",
    "error connect",
    "trying to connect",
    "reset by peer",
    "network is unreachable",
    "no route to host",
    "timed out",
    "timeout",
    "timeouterror",
    "slowdown",
    "slow down",
    "broken pipe",
    "unavailable",
    "serviceunavailable",
    "internalerror",
    "internal server error",
    "bad gateway",
    "too many requests",
    "error sending request",
    "error decoding response body",
    "request or response body error",
    "incompletemessage",
    "incomplete message",
    "dns",
    "failed to lookup address",
];

/// The words of a message in lower case with one space around each, without what may be a name that somebody chose
/// (paths, URLs, `key=value`, what is quoted): a bucket called `connection-500` says nothing about what happened.
fn without_names(text: &str) -> String {
    // XML bodies of S3 services: their tags stand between words
    let text = text.replace(['<', '>'], " ");
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let mut said = String::from(" ");
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if let Some(count) = quoted(&tokens[at..]) {
            at += count;
            continue;
        }
        at += 1;
        if token.contains(['/', '=']) {
            continue;
        }
        // `Kind(Reset)`, `IO:disk`: words that only punctuation joins; `retry_timeout` and `a-500` are names
        for part in token.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))) {
            let part = part.trim_matches(|c: char| !c.is_ascii_alphanumeric());
            if !part.is_empty() {
                said.push_str(&part.to_ascii_lowercase());
                said.push(' ');
            }
        }
    }
    said
}

/// How many tokens a quotation takes that begins with the first one; none where none begins, or it does not end.
fn quoted(tokens: &[&str]) -> Option<usize> {
    let first = tokens.first()?;
    let quote = first.chars().next().filter(|c| matches!(c, '"' | '`' | '\''))?;
    let ends = |token: &str| token.trim_end_matches([',', '.', ':', ';', ')']).ends_with(quote);
    let last = tokens
        .iter()
        .enumerate()
        .position(|(i, token)| if i == 0 { token.len() > 1 && ends(token) } else { ends(token) })?;
    Some(last + 1)
}

/// Whether a message, as [`without_names`] writes it, tells of an HTTP status that may pass.
fn has_server_status(said: &str) -> bool {
    let words: Vec<&str> = said.split_whitespace().collect();
    words.windows(2).any(|pair| {
        matches!(pair[0], "status" | "code" | "http" | "error" | "response")
            && matches!(pair[1], "429" | "500" | "502" | "503" | "504")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_exhausted_and_a_reset_connection_is_worth_a_retry() {
        assert_eq!(kind_of_text("write: No space left on device (os error 28)"), ErrorKind::Exhausted);
        assert_eq!(kind_of_text("connection reset by peer"), ErrorKind::Unavailable);
        assert_eq!(kind_of_text("AccessDenied"), ErrorKind::Invalid);
        assert_eq!(kind_of_text("LanceError(IO): Read-only file system (os error 30)"), ErrorKind::Invalid);
        assert_eq!(kind_of_text("failed to fill whole buffer"), ErrorKind::Corrupt);
        for passing in [
            "Generic S3 error: Error performing PUT http://h/b in 1s, after 3 retries - Server returned non-2xx status code: 503: busy",
            "HTTP error: error sending request for url (http://127.0.0.1:1/b)",
            "client error (Connect): tcp connect error: Connection refused (os error 111)",
            "operation timed out",
            "<Error><Code>SlowDown</Code></Error> HTTP status 500",
        ] {
            assert_eq!(kind_of_text(passing), ErrorKind::Unavailable, "{passing}");
        }
    }

    #[test]
    fn names_that_somebody_chose_do_not_decide_what_happened() {
        for text in [
            "cannot decode s3://connection-500/timeout/a.lance",
            "unexpected end of file in /data/runs-503/dns/part",
            "no column named \"connection reset\", max_retries:10, retry_timeout:180s",
            "invalid page header: expected 500 bytes, found 12",
            "field 'timed out' has no type",
        ] {
            assert_eq!(kind_of_text(text), ErrorKind::Internal, "{text}");
        }
    }
}
