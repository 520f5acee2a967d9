//! Takes off compression, as many layers as there are, and shows the first bytes of what is inside.

use std::io::{self, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::SourceFailed;

/// How much of a source importers see when they are asked whether it is theirs.
pub(crate) const HEAD_BYTES: usize = 256 << 10;
/// More layers than this are a trick.
const LAYERS_MAX: usize = 4;
/// A source may grow to this size whatever its ratio: small files compress well.
const FREE_BYTES: u64 = 256 << 20;
/// Largest window of a zstd frame: 128 MiB, so that decoding stays within any memory limit that we take.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// A source without its compression.
pub(crate) struct Unpacked {
    /// The first bytes, without a byte order mark.
    pub(crate) head: Vec<u8>,
    /// Whether `head` is all of it.
    pub(crate) complete: bool,
    /// Length of the byte order mark that was taken off: where `head` starts.
    pub(crate) byte_offset: u64,
    /// Whether a layer of compression was taken off: the bytes are then not those of the file.
    pub(crate) was_compressed: bool,
    /// What follows `head`.
    rest: Box<dyn Read + Send>,
}

impl Unpacked {
    /// All of it as one stream, `head` first.
    pub(crate) fn into_stream(self) -> Box<dyn Read + Send> {
        Box::new(Cursor::new(self.head).chain(self.rest))
    }
}

/// Takes off compression layer by layer. `live`: somebody may be writing into the stream right now.
///
/// # Errors
/// [`SourceFailed`] inside where the source could not be read; any other error means that a layer is damaged.
pub(crate) fn unpack(raw: Box<dyn Read + Send>, expansion_ratio_max: u64, live: bool) -> io::Result<Unpacked> {
    let mut stream = raw;
    let mut was_compressed = false;
    for _ in 0..LAYERS_MAX {
        let (head, complete, damage) = peek(&mut stream, live && !was_compressed)?;
        if let Some(damage) = damage {
            stream = Box::new(Damaged(Some(damage)));
        }
        let Some(compression) = Compression::of(&head) else {
            let bom = if head.starts_with(BOM) { BOM.len() } else { 0 };
            let byte_offset = bom as u64;
            return Ok(Unpacked { head: head[bom..].to_vec(), complete, byte_offset, was_compressed, rest: stream });
        };
        was_compressed = true;
        let consumed = Arc::new(AtomicU64::new(0));
        let packed = Counted { inner: Cursor::new(head).chain(stream), count: Arc::clone(&consumed) };
        let inner: Box<dyn Read + Send> = match compression {
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed)),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::new(packed)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
        };
        stream = Box::new(Guarded { inner, produced: 0, consumed, expansion_ratio_max });
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("compressed more than {LAYERS_MAX} times over")))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// The first bytes, whether they are all, and the damage that stopped them: what precedes it is still good. Of a live
/// stream only as many bytes as it takes to see a whole value: the writer may be waiting for us.
fn peek(stream: &mut dyn Read, live: bool) -> io::Result<(Vec<u8>, bool, Option<io::Error>)> {
    let mut head = Vec::new();
    let limit = HEAD_BYTES as u64 + 1;
    if !live {
        return match stream.take(limit).read_to_end(&mut head) {
            Ok(_) => {
                let complete = head.len() <= HEAD_BYTES;
                Ok((head, complete, None))
            }
            Err(error) if head.is_empty() || error.get_ref().is_some_and(|inner| inner.is::<SourceFailed>()) => {
                Err(error)
            }
            Err(error) => Ok((head, false, Some(error))),
        };
    }
    let mut buffer = vec![0; 64 << 10];
    while head.len() <= HEAD_BYTES && is_cut(&head) {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok((head, true, None));
        }
        head.extend_from_slice(&buffer[..read]);
    }
    Ok((head, false, None))
}

/// What is left of a source after damage: its error, once.
struct Damaged(Option<io::Error>);

impl Read for Damaged {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// Whether the first value is not there in full yet.
fn is_cut(head: &[u8]) -> bool {
    let text = head.strip_prefix(BOM).unwrap_or(head);
    text.is_empty() || crate::json::value_end(text, 0).is_err_and(|broken| broken.cut)
}

/// Counts what a decoder takes in.
struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Stops a decoder that gives out more than any honest data would.
struct Guarded {
    inner: Box<dyn Read + Send>,
    produced: u64,
    consumed: Arc<AtomicU64>,
    expansion_ratio_max: u64,
}

impl Read for Guarded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.produced += read as u64;
        let consumed = self.consumed.load(Ordering::Relaxed);
        if self.produced > FREE_BYTES && self.produced / self.expansion_ratio_max.max(1) > consumed {
            let message = format!(
                "{consumed} compressed bytes gave {} bytes so far, more than expansion_ratio_max = {} times as many",
                self.produced, self.expansion_ratio_max
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(read)
    }
}

/// Marks errors of the source itself, and counts its bytes.
pub(crate) struct RawSource<R> {
    pub(crate) inner: R,
    pub(crate) count: Box<dyn Fn(u64) + Send>,
}

impl<R: Read> Read for RawSource<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.inner.read(buffer) {
            Ok(read) => {
                (self.count)(read as u64);
                Ok(read)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => Err(io::Error::new(error.kind(), SourceFailed(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn unpacked(bytes: Vec<u8>) -> io::Result<(Vec<u8>, u64)> {
        let unpacked = unpack(Box::new(Cursor::new(bytes)), 1_000, false)?;
        let offset = unpacked.byte_offset;
        let mut all = Vec::new();
        unpacked.into_stream().read_to_end(&mut all)?;
        Ok((all, offset))
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn layers_come_off_whatever_the_name_and_members_follow_each_other() {
        let text = b"{\"a\":1}\n".repeat(100_000);
        assert_eq!(unpacked(text.clone()).unwrap().0, text);
        assert_eq!(unpacked(gzip(&text)).unwrap().0, text);
        let two = [gzip(&text), gzip(b"tail")].concat();
        assert_eq!(unpacked(two).unwrap().0, [&text[..], b"tail"].concat());
        let nested = zstd::encode_all(&gzip(&text)[..], 1).unwrap();
        assert_eq!(unpacked(nested).unwrap().0, text);
    }

    #[test]
    fn a_byte_order_mark_is_taken_off_and_counted() {
        assert_eq!(unpacked(b"\xef\xbb\xbf{}".to_vec()).unwrap(), (b"{}".to_vec(), 3));
    }

    #[test]
    fn a_cut_archive_is_an_error_of_the_archive_and_not_of_the_source() {
        let mut cut = gzip(&b"0123456789".repeat(100_000));
        cut.truncate(cut.len() / 2);
        let found = unpack(Box::new(Cursor::new(cut)), 1_000, false).unwrap();
        assert!(found.head.starts_with(b"0123456789"), "what precedes the cut is there");
        assert!(!found.complete);
        let error = found.into_stream().read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.get_ref().is_none_or(|inner| !inner.is::<SourceFailed>()));
    }

    #[test]
    fn a_live_stream_is_not_waited_for_beyond_its_first_value() {
        struct Slow(Vec<&'static [u8]>);
        impl Read for Slow {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                assert!(!self.0.is_empty(), "asked for more than was needed");
                let chunk = self.0.remove(0);
                buffer[..chunk.len()].copy_from_slice(chunk);
                Ok(chunk.len())
            }
        }
        let unpacked = unpack(Box::new(Slow(vec![b"{\"a\":", b"1}\n{\"b\""])), 1_000, true).unwrap();
        assert_eq!((unpacked.head.as_slice(), unpacked.complete), (&b"{\"a\":1}\n{\"b\""[..], false));
    }

    #[test]
    fn a_bomb_is_stopped_early() {
        let bomb = zstd::encode_all(io::repeat(0).take(1 << 30), 1).unwrap();
        let unpacked = unpack(Box::new(Cursor::new(bomb)), 1_000, false).unwrap();
        let mut stream = unpacked.into_stream();
        let copied = io::copy(&mut stream, &mut io::sink());
        assert!(copied.unwrap_err().to_string().contains("expansion_ratio_max"));
    }
}
