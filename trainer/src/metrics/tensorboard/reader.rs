//! An event file back as events.

use std::path::Path;

use super::error::EventFileError;
use super::event::Event;
use super::record::{Next, next};

/// What a file holds.
#[derive(Debug, Clone, PartialEq)]
pub struct EventFile {
    /// Its events, in the order of writing.
    pub events: Vec<Event>,
    /// Bytes of whole records.
    pub whole_bytes: u64,
    /// Bytes of a torn record behind them; 0 where there is none.
    pub torn_bytes: u64,
}

/// Reads a whole file into memory: a run of ten thousand steps and fifty metrics has 25 MB.
///
/// # Errors
/// [`EventFileError`]: `Corrupt` where a record that is not the last one is damaged. A torn last one is none.
pub fn read_events(path: &Path) -> Result<EventFile, EventFileError> {
    let bytes = std::fs::read(path).map_err(EventFileError::io("read", path))?;
    let mut file = EventFile { events: Vec::new(), whole_bytes: 0, torn_bytes: 0 };
    let mut rest = bytes.as_slice();
    let damaged = |byte: u64| EventFileError::Damaged { path: path.to_owned(), byte };
    loop {
        match next(rest) {
            Next::Record { data, framed_bytes } => {
                file.events.push(Event::decode(data).ok_or_else(|| damaged(file.whole_bytes))?);
                file.whole_bytes += framed_bytes as u64;
                rest = &rest[framed_bytes..];
            }
            Next::End => return Ok(file),
            Next::Torn => {
                file.torn_bytes = rest.len() as u64;
                return Ok(file);
            }
            Next::Damaged => return Err(damaged(file.whole_bytes)),
        }
    }
}
