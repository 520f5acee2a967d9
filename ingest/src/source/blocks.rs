//! A byte stream as blocks of whole lines, cut where records begin.

use std::io::{self, Read};

use super::SourceFailed;

/// What a block aims at; a longer line makes a longer block.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;

/// Some whole lines.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) bytes: Vec<u8>,
    /// Where they start in the decompressed source.
    pub(crate) byte_offset: u64,
    /// 1-based.
    pub(crate) first_line: u64,
}

/// What came of asking for a block.
#[derive(Debug)]
pub(crate) enum Next {
    Block(Block),
    /// A line is longer than allowed: its first bytes, and where it starts. The rest of it was read past.
    TooLong {
        head: Vec<u8>,
        byte_offset: u64,
        byte_length: u64,
        line: u64,
    },
    End,
}

/// Cuts a stream into blocks.
pub(crate) struct Blocks {
    source: Box<dyn Read + Send>,
    carry: Vec<u8>,
    byte_offset: u64,
    line: u64,
    ended: bool,
    /// Damage that was met, to be told after the bytes before it were given out.
    damage: Option<io::Error>,
    line_bytes_max: u64,
    block_bytes: usize,
    live: bool,
}

impl Blocks {
    /// `byte_offset` is how much of the source was read before (a byte order mark).
    pub(crate) fn new(source: Box<dyn Read + Send>, byte_offset: u64, line_bytes_max: u64) -> Self {
        Self {
            source,
            carry: Vec::new(),
            byte_offset,
            line: 1,
            ended: false,
            damage: None,
            line_bytes_max,
            block_bytes: BLOCK_BYTES,
            live: false,
        }
    }

    /// Gives whole lines as soon as they are there: somebody may be writing into the stream right now.
    pub(crate) fn live(self, live: bool) -> Self {
        Self { live, ..self }
    }

    /// The next block. `grown` is told each time before the block grows beyond its usual size (by how much), so that
    /// the memory can be asked for.
    ///
    /// # Errors
    /// A damaged source gives what precedes the damage first, and then its error.
    pub(crate) fn next(&mut self, mut grown: impl FnMut(u64) -> io::Result<()>) -> io::Result<Next> {
        let mut bytes = std::mem::take(&mut self.carry);
        bytes.reserve(self.block_bytes.saturating_sub(bytes.len()));
        // how far the search for a cut went, so that a long line is not searched again and again
        let mut searched = 0;
        let mut granted = self.block_bytes;
        loop {
            let wanted = self.block_bytes.max(bytes.len() + self.block_bytes);
            while bytes.len() >= granted {
                grown(self.block_bytes as u64)?;
                granted += self.block_bytes;
            }
            if self.live && !self.ended {
                self.read_some(&mut bytes)?;
            }
            while !self.live && !self.ended && bytes.len() < wanted {
                let limit = (wanted - bytes.len()) as u64;
                match (&mut self.source).take(limit).read_to_end(&mut bytes) {
                    Ok(read) => self.ended = (read as u64) < limit,
                    Err(error) => self.end_with(error)?,
                }
            }
            let cut = match (self.ended, self.live) {
                (true, _) => Some(bytes.len()),
                (false, true) => memchr::memrchr(b'\n', &bytes).map(|at| at + 1),
                (false, false) => cut_of(&bytes, &mut searched),
            };
            if let Some(cut) = cut {
                if bytes.is_empty() {
                    return self.damage.take().map_or(Ok(Next::End), Err);
                }
                self.carry = bytes[cut..].to_vec();
                bytes.truncate(cut);
                let block = Block { byte_offset: self.byte_offset, first_line: self.line, bytes };
                self.byte_offset += cut as u64;
                self.line += memchr::memchr_iter(b'\n', &block.bytes).count() as u64;
                return Ok(Next::Block(block));
            }
            if bytes.len() as u64 > self.line_bytes_max {
                return self.skip_line(bytes);
            }
        }
    }

    /// One read of what is there now.
    fn read_some(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        match self.source.read(&mut buffer) {
            Ok(read) => {
                self.ended = read == 0;
                bytes.extend_from_slice(&buffer[..read]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => self.end_with(error),
        }
    }

    /// Damage ends the source where it is. A source that could not be read is another matter: a rerun may well read
    /// it, so nothing is taken from a block that was cut by it.
    fn end_with(&mut self, error: io::Error) -> io::Result<()> {
        if error.get_ref().is_some_and(|inner| inner.is::<SourceFailed>()) {
            return Err(error);
        }
        self.ended = true;
        self.damage = Some(error);
        Ok(())
    }

    /// Where the next block starts in the decompressed source.
    pub(crate) fn byte_offset(&self) -> u64 {
        self.byte_offset
    }

    /// Reads past a line that is too long.
    fn skip_line(&mut self, mut head: Vec<u8>) -> io::Result<Next> {
        let (byte_offset, line) = (self.byte_offset, self.line);
        let mut byte_length = head.len() as u64;
        head.truncate(BLOCK_BYTES);
        let mut buffer = vec![0; BLOCK_BYTES];
        loop {
            let read = self.source.read(&mut buffer)?;
            if read == 0 {
                self.ended = true;
                break;
            }
            if let Some(at) = memchr::memchr(b'\n', &buffer[..read]) {
                byte_length += at as u64;
                self.carry = buffer[at + 1..read].to_vec();
                break;
            }
            byte_length += read as u64;
        }
        self.byte_offset += byte_length + u64::from(!self.ended);
        self.line += 1;
        Ok(Next::TooLong { head, byte_offset, byte_length, line })
    }
}

/// Where to cut a block that does not end the source: before the last line that starts like a record, so that a raw
/// newline inside a string does not tear a record in two. A block without such a line is cut after its last line end.
fn cut_of(bytes: &[u8], searched: &mut usize) -> Option<usize> {
    if let Some(at) = memchr::memmem::rfind(&bytes[*searched..], b"\n{").map(|at| at + *searched + 1) {
        return Some(at);
    }
    // a start of a record may lie across the border of two reads
    let from = std::mem::replace(searched, bytes.len().saturating_sub(1));
    memchr::memrchr(b'\n', &bytes[from..]).map(|at| at + from + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &[u8], block_bytes: usize, line_bytes_max: u64) -> Vec<Next> {
        let mut blocks = Blocks::new(Box::new(io::Cursor::new(text.to_vec())), 0, line_bytes_max);
        blocks.block_bytes = block_bytes;
        let mut out = Vec::new();
        loop {
            match blocks.next(|_| Ok(())).unwrap() {
                Next::End => return out,
                next => out.push(next),
            }
        }
    }

    proptest! {
        #[test]
        fn blocks_joined_are_the_source_and_end_at_line_ends(text in "[a{\n]{0,80}", block_bytes in 1_usize..20) {
            let mut joined = Vec::new();
            let mut line = 1;
            for next in all(text.as_bytes(), block_bytes, 1_000) {
                let Next::Block(block) = next else { panic!("{next:?}") };
                prop_assert_eq!(block.byte_offset, joined.len() as u64);
                prop_assert_eq!(block.first_line, line);
                line += block.bytes.iter().filter(|b| **b == b'\n').count() as u64;
                joined.extend_from_slice(&block.bytes);
                prop_assert!(block.bytes.ends_with(b"\n") || joined.len() == text.len());
            }
            prop_assert_eq!(joined, text.as_bytes());
        }
    }

    #[test]
    fn what_precedes_damage_is_given_out_before_its_error() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::new(io::ErrorKind::InvalidData, "bad checksum"))
            }
        }
        for live in [false, true] {
            let source = io::Cursor::new(b"{\"a\":1}\n{\"b\":".to_vec()).chain(Broken);
            let mut blocks = Blocks::new(Box::new(source), 0, 1_000).live(live);
            let mut given = Vec::new();
            let error = loop {
                match blocks.next(|_| Ok(())) {
                    Ok(Next::Block(block)) => given.extend_from_slice(&block.bytes),
                    Ok(next) => panic!("{next:?}"),
                    Err(error) => break error,
                }
            };
            assert_eq!(given, b"{\"a\":1}\n{\"b\":");
            assert_eq!((error.to_string().as_str(), blocks.byte_offset()), ("bad checksum", 13));
        }
    }

    #[test]
    fn a_line_over_the_limit_is_read_past_and_the_next_one_is_found() {
        let text = [b"{\"a\":1}\n".as_slice(), &b"x".repeat(100), b"\n{\"b\":2}\n"].concat();
        let next = all(&text, 8, 40);
        let rest: Vec<u8> = next
            .iter()
            .flat_map(|n| match n {
                Next::Block(b) => b.bytes.clone(),
                _ => vec![],
            })
            .collect();
        assert_eq!(rest, b"{\"a\":1}\n{\"b\":2}\n");
        let long = next.iter().find_map(|n| match n {
            Next::TooLong { byte_offset, byte_length, line, .. } => Some((*byte_offset, *byte_length, *line)),
            _ => None,
        });
        assert_eq!(long, Some((8, 100, 2)));
    }
}
