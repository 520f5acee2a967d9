//! TensorBoard event files: written and read without TensorFlow.
//!
//! A file is a sequence of records; a record is framed so that a reader sees where a crash cut it off:
//!
//! ```text
//!   length      u64, little-endian
//!   length_crc  u32, masked CRC-32C of the eight bytes of length
//!   data        length bytes: an Event, as a protocol buffer
//!   data_crc    u32, masked CRC-32C of data
//! ```
//!
//! The first event says `brain.Event:2`; each later one has a wall time, a step and values of tags. A torn last record is
//! legal: readers stop before it, and a writer that goes on with the file cuts it off.
//!
//! Format: tensorflow `record_writer.cc`, `event.proto` and `summary.proto`. Only what TensorBoard's scalars need is written.
//!
//! Read first: [`EventWriter`], [`read_events`].

mod crc32c;
mod error;
mod event;
mod protobuf;
mod reader;
mod record;
mod writer;

pub use error::EventFileError;
pub use event::{Event, What};
pub use reader::{EventFile, read_events};
pub use writer::EventWriter;
