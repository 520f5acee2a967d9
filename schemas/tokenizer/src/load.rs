//! Bytes of a tokenizer file, never more than a bound.

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The largest `tokenizer.json` that is read, unpacked. The largest in use (256k entries, pretty-printed) are under
/// 40 MB; the bound keeps a mistyped path or a decompression bomb from filling memory.
pub const TOKENIZER_BYTES_MAX: u64 = 128 << 20;

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A folder stands for the `tokenizer.json` in it.
pub(crate) fn resolve(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() }
}

pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    let mut head = Vec::with_capacity(ZSTD_MAGIC.len());
    file.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut head).map_err(unreadable)?;
    let packed = head == ZSTD_MAGIC;
    let whole = Cursor::new(head).chain(file);
    let mut out = Vec::new();
    // one byte over the bound tells "exactly full" from "too large"
    let read = if packed {
        let unpacked = zstd::stream::read::Decoder::new(whole).map_err(unreadable)?;
        unpacked.take(bytes_max + 1).read_to_end(&mut out)
    } else {
        whole.take(bytes_max + 1).read_to_end(&mut out)
    };
    read.map_err(unreadable)?;
    if out.len() as u64 > bytes_max {
        return Err(Error::TooLarge { path: path.to_owned(), bytes_max });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_bomb_is_refused_at_the_bound_and_a_file_of_exactly_the_bound_is_not() {
        let folder = tempfile::tempdir().unwrap();
        for (name, packed) in [("plain", false), ("zstd", true)] {
            let path = folder.path().join(name);
            let bytes = vec![b' '; 1000];
            let bytes = if packed { zstd::encode_all(&bytes[..], 3).unwrap() } else { bytes };
            File::create(&path).unwrap().write_all(&bytes).unwrap();
            assert_eq!(read_bounded(&path, 1000).unwrap().len(), 1000);
            assert!(matches!(read_bounded(&path, 999), Err(Error::TooLarge { bytes_max: 999, .. })));
        }
    }

    #[test]
    fn a_file_shorter_than_the_magic_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short");
        std::fs::write(&path, b"{}").unwrap();
        assert_eq!(read_bounded(&path, 10).unwrap(), b"{}");
    }
}
