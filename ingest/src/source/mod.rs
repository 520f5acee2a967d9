//! Where bytes come from: what the user named, expanded to single sources, opened, and freed of compression.

pub(crate) mod archive;
pub(crate) mod blocks;
pub(crate) mod expand;
pub(crate) mod object;
pub(crate) mod seekable;
pub(crate) mod unpack;

use std::path::PathBuf;

/// One thing to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// As rows and messages name it.
    pub(crate) name: String,
    pub(crate) origin: Origin,
    /// Its size, where it is known before reading.
    pub(crate) byte_length: Option<u64>,
}

/// What a source is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    File(PathBuf),
    StandardInput,
    /// An object of an S3-compatible service.
    Object(String),
    /// Something that was found and cannot be opened, and why.
    Unreadable(String),
}

/// A failure of the source itself, carried through decoders as an [`std::io::Error`], so that a broken disk or network
/// is told from a damaged archive.
#[derive(Debug, thiserror::Error)]
#[error("the source could not be read")]
pub(crate) struct SourceFailed(#[source] pub(crate) std::io::Error);

/// The last component of a name, without its extensions.
pub(crate) fn stem(name: &str) -> String {
    let last = name.rsplit(['/', '\\', '!']).next().unwrap_or(name);
    let end = last.find('.').filter(|at| *at > 0).unwrap_or(last.len());
    last[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn a_stem_has_neither_folders_nor_extensions() {
        assert_eq!(stem("a/b/astropy__astropy-1.traj.gz"), "astropy__astropy-1");
        assert_eq!(stem("logs.eval!samples/7_epoch_1.json"), "7_epoch_1");
        assert_eq!(stem(".hidden"), ".hidden");
    }
}
