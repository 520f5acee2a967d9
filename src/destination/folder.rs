//! A folder whose files appear together, once all of them are written.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use tempfile::{Builder, TempDir};

use super::{Witness, WriteFailed, bare};
use crate::failure::Failure;

/// A folder whose files appear together, once it is kept. Dropped before, it leaves what was there.
#[derive(Debug)]
pub(crate) struct DestinationFolder {
    folder: PathBuf,
    /// Inside the folder, which may be where a disk is mounted.
    aside: TempDir,
    /// What had to be made, outermost first.
    made: Vec<PathBuf>,
    kept: bool,
}

impl DestinationFolder {
    /// Begins to fill a folder that is empty or not there: files of two exports must not mix.
    ///
    /// # Errors
    /// `Invalid` where it has files; where it cannot be made.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let failed = |error| WriteFailed::of(folder, error);
        let mut made: Vec<PathBuf> = folder
            .ancestors()
            .take_while(|f| !f.as_os_str().is_empty() && !f.exists())
            .map(Path::to_path_buf)
            .collect();
        made.reverse();
        std::fs::create_dir_all(folder).map_err(failed)?;
        if std::fs::read_dir(folder).map_err(failed)?.next().is_some() {
            let text = format!("{} is not empty: name a new folder", folder.display());
            return Err(Failure::invalid(text));
        }
        let aside = Builder::new().prefix(".unfinished-").tempdir_in(folder).map_err(|e| failed(bare(e)))?;
        Ok(Self { folder: folder.to_path_buf(), aside, made, kept: false })
    }

    /// Begins a file of it, by its path within.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub(crate) fn file(&self, within: &Path) -> Result<FolderFile> {
        let path = self.folder.join(within);
        let failed = |error| WriteFailed::of(&path, error);
        let aside = self.aside.path().join(within);
        if let Some(parent) = aside.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        let file = File::create(aside).map_err(failed)?;
        Ok(FolderFile { file, witness: Witness::of(path) })
    }

    /// Puts everything in its place.
    ///
    /// # Errors
    /// Where it cannot be moved.
    pub(crate) fn keep(mut self) -> Result<()> {
        let failed = |error| WriteFailed::of(&self.folder, error);
        for entry in std::fs::read_dir(self.aside.path()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            std::fs::rename(entry.path(), self.folder.join(entry.file_name())).map_err(failed)?;
        }
        self.kept = true;
        Ok(())
    }
}

/// One file of a [`DestinationFolder`].
#[derive(Debug)]
pub(crate) struct FolderFile {
    file: File,
    witness: Witness,
}

impl FolderFile {
    /// Who knows what went wrong with it.
    pub(crate) fn witness(&self) -> Witness {
        self.witness.clone()
    }

    /// Bytes in it.
    pub(crate) fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |m| m.len())
    }
}

impl Write for FolderFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        self.witness.look(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.witness.look(flushed)
    }
}

impl Drop for DestinationFolder {
    fn drop(&mut self) {
        // what cannot be removed stays: there is nobody left to tell
        let _ = std::fs::remove_dir_all(self.aside.path());
        if !self.kept {
            for folder in self.made.iter().rev() {
                let _ = std::fs::remove_dir(folder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::names;
    use super::*;

    #[test]
    fn a_folder_appears_with_all_its_files_or_not_at_all() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("a/out");
        let left = DestinationFolder::create(&path).expect("begins");
        left.file(Path::new("run=a/part")).expect("begins").write_all(b"x").expect("taken");
        drop(left);
        assert_eq!(names(place.path()), [""; 0]);

        let kept = DestinationFolder::create(&path).expect("begins");
        kept.file(Path::new("run=a/part")).expect("begins").write_all(b"x").expect("taken");
        kept.keep().expect("kept");
        assert_eq!((names(&path), names(&path.join("run=a"))), (vec!["run=a".to_owned()], vec!["part".to_owned()]));
        assert!(DestinationFolder::create(&path).is_err(), "it has files");
    }
}
