//! What the user named to single sources, in an order that does not depend on the file system. What is found and
//! cannot be looked into is a source too: one that will be quarantined, so that the others are read.

use std::path::Path;

use super::{Origin, Source};
use crate::error::{Error, Result};

/// Folders nested deeper than this are a loop.
const DEPTH_MAX: usize = 64;

/// The sources that a local name stands for: `-`, a file, a folder (all files in it but hidden ones, sorted), or a
/// glob.
pub(crate) fn expand_local(name: &str) -> Result<Vec<Source>> {
    if name == "-" {
        let origin = Origin::StandardInput;
        return Ok(vec![Source { name: "stdin".to_owned(), origin, byte_length: None }]);
    }
    let path = Path::new(name);
    let mut found = Vec::new();
    // a path that cannot be looked at is there, as far as one knows; only what is not there is an error
    if path.try_exists().unwrap_or(true) {
        walk(path, 0, &mut found)?;
        return Ok(found);
    }
    if !name.contains(['*', '?', '[']) {
        return Err(Error::SourceNotFound { source_name: name.to_owned() });
    }
    let bad = |problem: String| Error::BadSource { source_name: name.to_owned(), problem };
    let paths = glob::glob(name).map_err(|error| bad(error.to_string()))?;
    for path in paths {
        match path {
            Ok(path) => walk(&path, 0, &mut found)?,
            Err(error) => found.push(unreadable(error.path(), error.error())),
        }
    }
    if found.is_empty() {
        return Err(Error::SourceNotFound { source_name: name.to_owned() });
    }
    Ok(found)
}

fn walk(path: &Path, depth: usize, found: &mut Vec<Source>) -> Result<()> {
    let name = path.display().to_string();
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) => {
            found.push(unreadable(path, &error));
            return Ok(());
        }
    };
    if !metadata.is_dir() {
        let byte_length = metadata.is_file().then_some(metadata.len());
        found.push(Source { name, origin: Origin::File(path.to_owned()), byte_length });
        return Ok(());
    }
    if depth > DEPTH_MAX {
        let problem = "folders are nested too deeply; is there a link that leads back up?".to_owned();
        return Err(Error::BadSource { source_name: name, problem });
    }
    let mut names = Vec::new();
    let listed = path.read_dir().and_then(|entries| {
        for entry in entries {
            names.push(entry?.file_name());
        }
        Ok(())
    });
    if let Err(error) = listed {
        found.push(unreadable(path, &error));
    }
    names.sort_unstable();
    for name in names {
        if !name.to_string_lossy().starts_with('.') {
            walk(&path.join(name), depth + 1, found)?;
        }
    }
    Ok(())
}

fn unreadable(path: &Path, error: &std::io::Error) -> Source {
    let is_link = path.symlink_metadata().is_ok_and(|m| m.is_symlink());
    let what = match (error.kind(), is_link, path.is_dir()) {
        (std::io::ErrorKind::NotFound, true, _) => "a link that leads nowhere".to_owned(),
        (_, _, true) => format!("a folder that cannot be listed: {error}"),
        _ => error.to_string(),
    };
    Source { name: path.display().to_string(), origin: Origin::Unreadable(what), byte_length: Some(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(sources: &[Source], root: &Path) -> Vec<String> {
        let root = format!("{}/", root.display());
        sources.iter().map(|s| s.name.trim_start_matches(&root).to_owned()).collect()
    }

    #[test]
    fn a_folder_is_all_its_files_in_order_and_a_glob_those_that_match() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b/2.jsonl", "a.json", "b/10.jsonl", ".hidden/x.json"] {
            std::fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(name), b"{}").unwrap();
        }
        let folder = expand_local(dir.path().to_str().unwrap()).unwrap();
        assert_eq!(names(&folder, dir.path()), ["a.json", "b/10.jsonl", "b/2.jsonl"]);
        let glob = expand_local(&format!("{}/b/*.jsonl", dir.path().display())).unwrap();
        assert_eq!(names(&glob, dir.path()), ["b/10.jsonl", "b/2.jsonl"]);
    }

    #[test]
    fn what_is_not_there_is_an_error_and_not_an_empty_ingest() {
        assert!(matches!(expand_local("/no/such/file"), Err(Error::SourceNotFound { .. })));
        assert!(matches!(expand_local("/no/such/*.jsonl"), Err(Error::SourceNotFound { .. })));
    }
}
