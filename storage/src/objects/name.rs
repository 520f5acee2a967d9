//! Names of files below a folder: paths with forward slashes that lead nowhere else.

use crate::error::{Error, Result};

/// S3 allows keys of 1,024 bytes; the store's prefix needs some of them.
const NAME_BYTES_MAX: usize = 512;
/// One part of a path; file systems allow 255 bytes, and a file that is written aside has a longer name.
const PART_BYTES_MAX: usize = 200;

/// Checks a path below a folder.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<()> {
    let plain = |part: &str| {
        !part.is_empty()
            && part.len() <= PART_BYTES_MAX
            && part != "."
            && part != ".."
            && !part.contains(|c: char| c == '\\' || c.is_control())
    };
    if name.len() <= NAME_BYTES_MAX && name.split('/').all(plain) {
        return Ok(());
    }
    let expected = "a path below a folder: at most 512 bytes, parts of at most 200 that are not empty, . or ..";
    Err(Error::Setting { setting: what, value: shortened(name), expected })
}

/// Checks a name that becomes one part of a path in every kind of store.
pub(crate) fn check_part(what: &'static str, name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(allowed) {
        return Ok(());
    }
    let expected = "a name of 1 to 128 ASCII letters, digits, -, _ and . that does not begin with .";
    Err(Error::Setting { setting: what, value: shortened(name), expected })
}

fn shortened(name: &str) -> String {
    name.chars().take(150).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_lead_out_of_its_folder() {
        for good in ["a", "weights/model-00001-of-00002.safetensors", "a b/ü.json", "...", ".hidden"] {
            assert!(check_name("file", good).is_ok(), "{good}");
        }
        let long = "x".repeat(201);
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\nb", long.as_str()] {
            assert!(check_name("file", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_run_is_one_part_of_a_path_everywhere() {
        for good in ["grpo-1", "a.b_c", "2026-01-01"] {
            assert!(check_part("train_run", good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".x", "a/b", "a b", "ü", "a\0", &"x".repeat(129)] {
            assert!(check_part("train_run", bad).is_err(), "{bad}");
        }
    }
}
