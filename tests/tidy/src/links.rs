//! Relative links of Markdown files resolve, with their anchors.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use crate::Findings;

/// Checks every Markdown file.
pub(crate) fn check(root: &Path, files: &[PathBuf], findings: &mut Findings) -> Result<()> {
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "md")) {
        let text =
            std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {}", file.display()))?;
        for (line, target) in targets(&text) {
            if let Some(why) = broken(root, file, &text, &target) {
                findings.errors.push(format!("{}:{line}: link `{target}`: {why}", file.display()));
            }
        }
    }
    Ok(())
}

/// Link targets outside code, with their 1-based lines.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        if in_code {
            continue;
        }
        let line = without_code_spans(line);
        let mut rest = line.as_str();
        while let Some(start) = rest.find("](") {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            let target = rest[..end].split_whitespace().next().unwrap_or_default();
            found.push((number + 1, target.to_owned()));
            rest = &rest[end..];
        }
    }
    found
}

fn without_code_spans(line: &str) -> String {
    line.split('`').enumerate().map(|(i, part)| if i % 2 == 0 { part } else { "x" }).collect()
}

/// Why a target does not resolve.
fn broken(root: &Path, file: &Path, text: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some("is empty".to_owned());
    }
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a)));
    let pointed = if path.is_empty() {
        file.to_path_buf()
    } else {
        match normal(&file.parent().unwrap_or(Path::new("")).join(path)) {
            Some(pointed) => pointed,
            None => return Some("leaves the repository".to_owned()),
        }
    };
    let full = root.join(&pointed);
    if !full.exists() {
        return Some(format!("{} does not exist", pointed.display()));
    }
    let anchor = anchor?;
    if pointed.extension().is_none_or(|e| e != "md") {
        return None;
    }
    let other;
    let body = if pointed == file {
        text
    } else {
        other = std::fs::read_to_string(&full).unwrap_or_default();
        &other
    };
    (!anchors(body).iter().any(|a| a == anchor)).then(|| format!("{} has no heading #{anchor}", pointed.display()))
}

fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                if !out.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    Some(out)
}

/// Anchors as GitHub makes them from headings.
fn anchors(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code || !line.starts_with('#') {
            continue;
        }
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let slug: String = title
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                '-' | '_' => Some(c),
                c if c.is_alphanumeric() => Some(c),
                _ => None,
            })
            .collect();
        found.push(slug);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_are_not_links() {
        let text = "see [a](x.md) and `[b](y.md)`\n```\n[c](z.md)\n```\n[d](w.md \"title\")";
        assert_eq!(targets(text), vec![(1, "x.md".to_owned()), (5, "w.md".to_owned())]);
    }

    #[test]
    fn a_missing_file_or_heading_is_broken() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(dir.path().join("docs")).expect("mkdir");
        std::fs::write(dir.path().join("docs/a.md"), "# One two: three\n").expect("write");
        std::fs::write(dir.path().join("docs/b.md"), "# Here\n").expect("write");
        let check = |target: &str| broken(dir.path(), Path::new("docs/b.md"), "# Here\n", target);
        assert_eq!(check("a.md"), None);
        assert_eq!(check("a.md#one-two-three"), None);
        assert_eq!(check("#here"), None);
        assert_eq!(check("../docs/a.md"), None);
        assert_eq!(check("https://example.org/x"), None);
        assert!(check("c.md").is_some());
        assert!(check("a.md#four").is_some());
        assert!(check("../../a.md").is_some());
    }
}
