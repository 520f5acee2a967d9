//! The writer: one record an event, whole or not there.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::error::EventFileError;
use super::event::{Event, What};
use super::reader::read_events;
use super::record::frame;
use crate::metrics::StepMetrics;

/// TensorBoard groups charts by what stands before the slash.
const GROUP: &str = "train/";

/// Writes one event file. Every event is given to the system in one call, so that it survives the process; a crash of the
/// machine may tear the last ones off, unless [`EventWriter::sync`] was called.
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
}

impl EventWriter {
    /// A new file in `folder`, which is made if it is not there. Its name holds the time (seconds since 1970), as TensorBoard
    /// sorts files of a run by name.
    ///
    /// # Errors
    /// [`EventFileError::Io`].
    pub fn create(folder: &Path, wall_time: f64) -> Result<Self, EventFileError> {
        std::fs::create_dir_all(folder).map_err(EventFileError::io("make", folder))?;
        let seconds = wall_time.max(0.0) as u64;
        let mut attempt = 0;
        let (file, path) = loop {
            let name = format!("events.out.tfevents.{seconds:010}.dressage.{}.{attempt}", std::process::id());
            let path = folder.join(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => break (file, path),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
                Err(error) => return Err(EventFileError::io("make", &path)(error)),
            }
        };
        let mut writer = Self { file, path };
        writer.write(&Event { wall_time, step: 0, what: What::FileVersion })?;
        Ok(writer)
    }

    /// Goes on with a file behind its last whole event; a torn one is cut off.
    ///
    /// # Errors
    /// [`EventFileError`]: `Corrupt` where the file is damaged before its end.
    pub fn append(path: &Path, wall_time: f64) -> Result<Self, EventFileError> {
        let found = read_events(path)?;
        let mut file = OpenOptions::new().write(true).open(path).map_err(EventFileError::io("open", path))?;
        file.set_len(found.whole_bytes).map_err(EventFileError::io("cut", path))?;
        file.seek(SeekFrom::End(0)).map_err(EventFileError::io("open", path))?;
        let mut writer = Self { file, path: path.to_owned() };
        if found.events.is_empty() {
            writer.write(&Event { wall_time, step: 0, what: What::FileVersion })?;
        }
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says that the run goes on at `step`: TensorBoard drops what an earlier attempt wrote of it and of later ones.
    ///
    /// # Errors
    /// [`EventFileError::Io`].
    pub fn restart(&mut self, step: i64, wall_time: f64) -> Result<(), EventFileError> {
        self.write(&Event { wall_time, step, what: What::Restart })
    }

    /// The metrics of a step, each under the tag `train/` and its name. Values are rounded to 32 bits: the table keeps all.
    ///
    /// # Errors
    /// [`EventFileError::Io`].
    pub fn step(&mut self, step: i64, wall_time: f64, metrics: &StepMetrics) -> Result<(), EventFileError> {
        let scalars = metrics.iter().map(|(name, value)| (format!("{GROUP}{name}"), value as f32)).collect();
        self.write(&Event { wall_time, step, what: What::Scalars(scalars) })
    }

    /// Waits until what was written is on the disk.
    ///
    /// # Errors
    /// [`EventFileError::Io`].
    pub fn sync(&mut self) -> Result<(), EventFileError> {
        self.file.sync_data().map_err(EventFileError::io("write", &self.path))
    }

    fn write(&mut self, event: &Event) -> Result<(), EventFileError> {
        let mut record = Vec::new();
        frame(&event.encode(), &mut record);
        let from = self.file.stream_position().map_err(EventFileError::io("write", &self.path))?;
        let written = self.file.write_all(&record);
        if written.is_err() {
            // half a record in the middle of a file would damage all that come after it; if even this fails, the next
            // append cuts it off
            let _ = self.file.set_len(from).and_then(|()| self.file.seek(SeekFrom::Start(from)));
        }
        written.map_err(EventFileError::io("write", &self.path))
    }
}
