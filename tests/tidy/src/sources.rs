//! Length, names, opening comments and words of source files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::Findings;

/// A file longer than this should be split.
const LINES_WARN: usize = 500;

/// A file longer than this is an error.
const LINES_MAX: usize = 800;

/// Names that say nothing about what a file holds.
const EMPTY_NAMES: [&str; 10] =
    ["util", "utils", "helper", "helpers", "common", "base", "manager", "misc", "shared", "stuff"];

/// Checks every source file.
pub(crate) fn check(root: &Path, files: &[PathBuf], findings: &mut Findings) -> Result<()> {
    let tests = test_modules(root, files)?;
    for file in files {
        let extension = file.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if !matches!(extension, "rs" | "sql" | "py" | "sh") {
            continue;
        }
        let text =
            std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {}", file.display()))?;
        let found = look(
            file,
            &text,
            tests.iter().any(|module| file.starts_with(module) || *file == module.with_extension("rs")),
        );
        findings.errors.extend(found.errors);
        findings.warnings.extend(found.warnings);
    }
    Ok(())
}

/// Modules that are compiled for tests only, as paths without an ending.
fn test_modules(root: &Path, files: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut modules = Vec::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "rs")) {
        let text =
            std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {}", file.display()))?;
        let folder = match file.file_stem().and_then(|s| s.to_str()) {
            Some("mod" | "lib" | "main") | None => file.parent().unwrap_or(Path::new("")).to_path_buf(),
            Some(stem) => file.with_file_name(stem),
        };
        modules.extend(declared_for_tests(&text).into_iter().map(|name| folder.join(name)));
    }
    Ok(modules)
}

/// Names `x` of `#[cfg(test)] mod x;`.
fn declared_for_tests(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let pairs = lines.iter().zip(lines.iter().skip(1));
    let declared = pairs.filter(|(attribute, _)| **attribute == "#[cfg(test)]").map(|(_, line)| *line);
    declared.filter_map(|line| line.split_once("mod ")?.1.strip_suffix(';')).collect()
}

fn look(file: &Path, text: &str, for_tests: bool) -> Findings {
    let mut findings = Findings::default();
    let name = file.display();
    let lines = text.lines().count();
    if lines > LINES_MAX {
        findings.errors.push(format!("{name} has {lines} lines; split it (at most {LINES_MAX})"));
    } else if lines > LINES_WARN {
        findings.warnings.push(format!("{name} has {lines} lines; consider splitting it"));
    }
    for part in file.components() {
        let stem = Path::new(part.as_os_str()).file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        if EMPTY_NAMES.contains(&stem) {
            findings.errors.push(format!("{name}: `{stem}` says nothing about its contents; name the concept"));
        }
    }
    let is_rust = file.extension().is_some_and(|e| e == "rs");
    if is_rust && !text.starts_with("//!") && lines > 0 {
        findings.errors.push(format!("{name} does not open with a `//!` comment saying what it holds"));
    }
    let is_view = file.extension().is_some_and(|e| e == "sql");
    if is_view && !text.starts_with("--") {
        findings.errors.push(format!("{name} does not open with a `--` comment saying what it answers"));
    }
    // this file has to spell the words that it forbids
    if is_rust && !file.ends_with("tidy/src/sources.rs") {
        let mut for_tests = for_tests;
        for (number, line) in text.lines().enumerate() {
            // test modules stand at the end of a file
            for_tests |= line.trim() == "#[cfg(test)]";
            if let Some(why) = bad_word(line) {
                findings.errors.push(format!("{name}:{}: {why}", number + 1));
            }
            if !for_tests && is_library(file) && prints(line) {
                findings.errors.push(format!("{name}:{}: a library room does not print", number + 1));
            }
        }
    }
    findings
}

/// A library room's own code: not the command, tests, benches, examples or build scripts.
fn is_library(file: &Path) -> bool {
    let text = file.to_string_lossy();
    text.contains("/src/") && !text.starts_with("src/") && !text.starts_with("tests/") && !text.contains("/bin/")
}

fn prints(line: &str) -> bool {
    let line = line.trim_start();
    !line.starts_with("//") && ["println!(", "eprintln!(", "print!(", "eprint!("].iter().any(|m| line.contains(m))
}

fn bad_word(line: &str) -> Option<&'static str> {
    let lower = line.to_ascii_lowercase();
    if ["todo!(", "unimplemented!("].iter().any(|w| lower.contains(w)) {
        return Some("unfinished code is not committed");
    }
    if ["fixme", "// todo", "// xxx", "//todo"].iter().any(|w| lower.contains(w)) {
        return Some("a wish belongs in an issue, not in a comment");
    }
    if lower.contains("#[allow(dead_code)]") {
        return Some("unused code is deleted, not allowed");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(file: &str, text: &str) -> Vec<String> {
        look(Path::new(file), text, false).errors
    }

    #[test]
    fn long_files_warn_and_then_fail() {
        let long = format!("//! x\n{}", "fn a() {}\n".repeat(600));
        assert_eq!(look(Path::new("a/src/b.rs"), &long, false).warnings.len(), 1);
        assert!(errors("a/src/b.rs", &long).is_empty());
        assert_eq!(errors("a/src/b.rs", &"//! x\n".repeat(801)).len(), 1);
    }

    #[test]
    fn empty_names_are_refused_as_file_and_folder() {
        assert_eq!(errors("storage/src/utils.rs", "//! x\n").len(), 1);
        assert_eq!(errors("storage/src/common/mod.rs", "//! x\n").len(), 1);
        assert!(errors("storage/src/database.rs", "//! x\n").is_empty());
    }

    #[test]
    fn files_say_what_they_hold() {
        assert_eq!(errors("a/src/b.rs", "use x;\n").len(), 1);
        assert_eq!(errors("a/views/b.sql", "select 1\n").len(), 1);
    }

    #[test]
    fn libraries_do_not_print_and_the_command_may() {
        assert_eq!(errors("ingest/src/a.rs", "//! x\nprintln!(\"\");\n").len(), 1);
        assert!(errors("ingest/src/a.rs", "//! x\n/// println!(\"\");\n").is_empty());
        assert!(errors("src/main.rs", "//! x\nprintln!(\"\");\n").is_empty());
        assert!(errors("ingest/src/a.rs", "//! x\n#[cfg(test)]\nmod tests { println!(\"\"); }\n").is_empty());
        assert_eq!(declared_for_tests("#[cfg(test)]\nmod corpus;\nmod other;\n"), vec!["corpus"]);
    }

    #[test]
    fn unfinished_code_is_found() {
        assert_eq!(errors("a/src/b.rs", "//! x\nfn f() { todo!() }\n").len(), 1);
        assert_eq!(errors("a/src/b.rs", "//! x\n// FIXME later\n").len(), 1);
    }
}
