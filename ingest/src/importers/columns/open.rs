//! Opens columnar sources and gives their batches, cut between trajectories.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;
use arrow::ipc::reader::{FileDecoder, StreamReader, read_footer_length};
use arrow::ipc::{Block, convert, root_as_footer};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::Piece;
use super::cells::TextColumn;
use crate::importer::Shape;
use crate::source::seekable::Section;

/// What a piece aims at, so that many threads share a large batch.
const PIECE_BYTES: usize = 4 << 20;
/// What a batch of a Parquet file aims at.
const PARQUET_BATCH_BYTES: i64 = 8 << 20;
/// Asked for before a batch whose size is not known beforehand.
const UNKNOWN_BATCH_BYTES: u64 = 8 << 20;
/// Footers longer than this are not ours.
const FOOTER_BYTES_MAX: usize = 256 << 20;

/// A columnar source.
pub(crate) enum Input {
    /// Parquet or the file form of Arrow IPC.
    File(Shape, Section),
    /// The stream form of Arrow IPC.
    Stream(Box<dyn Read + Send>),
}

impl Input {
    pub(crate) fn format(&self) -> &'static str {
        match self {
            Self::File(Shape::Parquet, _) => super::FORMATS[1],
            Self::File(..) | Self::Stream(_) => super::FORMATS[0],
        }
    }
}

/// Why a source gives no rows.
pub(crate) enum NotRows {
    /// It is sound and has other columns: what it looks like.
    OtherColumns(String),
    Io(io::Error),
}

impl From<io::Error> for NotRows {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Errors of the source itself keep their identity, so that the pipeline can tell them from damage.
fn io_of(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

fn io_of_parquet(error: ParquetError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

enum Batches {
    File { section: Section, decoder: FileDecoder, blocks: VecDeque<Block> },
    Stream(Box<StreamReader<Box<dyn Read + Send>>>),
    Parquet { reader: ParquetRecordBatchReader, batch_bytes: u64 },
}

/// The rows of a source, trajectory by trajectory.
pub(crate) struct Rows {
    batches: Batches,
    /// Rows of the trajectory that the last batch ended in: it may go on in the next one.
    carry: Vec<RecordBatch>,
    row_offset: u64,
    ended: bool,
}

/// Opens a source and checks that it has our columns.
pub(crate) fn open(input: Input) -> Result<Rows, NotRows> {
    let (batches, schema) = match input {
        Input::File(Shape::Parquet, section) => open_parquet(section)?,
        Input::File(_, section) => open_file(section)?,
        Input::Stream(stream) => {
            let reader = StreamReader::try_new(stream, None).map_err(io_of)?;
            let schema = reader.schema();
            (Batches::Stream(Box::new(reader)), schema)
        }
    };
    for column in ["trajectory_id", "tokens"] {
        if schema.index_of(column).is_err() {
            let mut names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            names.truncate(12);
            let is_prompts =
                names.contains(&"prompt") && names.iter().any(|n| matches!(*n, "reward_model" | "ability"));
            let kind = if is_prompts { "a prompt set: a table" } else { "a table" };
            let what = format!("{kind} without column {column}; its columns are {}", names.join(", "));
            return Err(NotRows::OtherColumns(what));
        }
    }
    Ok(Rows { batches, carry: Vec::new(), row_offset: 0, ended: false })
}

fn open_file(section: Section) -> Result<(Batches, Arc<Schema>), NotRows> {
    let length = section.byte_length();
    let bad = |message: &str| NotRows::Io(io::Error::new(io::ErrorKind::InvalidData, message.to_owned()));
    let mut tail = [0; 10];
    section.read_exact_at(&mut tail, length.saturating_sub(10))?;
    let footer_length = read_footer_length(tail).map_err(io_of)?;
    if footer_length > FOOTER_BYTES_MAX || footer_length as u64 + 10 > length {
        return Err(bad("the footer is longer than the file"));
    }
    let mut footer = vec![0; footer_length];
    section.read_exact_at(&mut footer, length - 10 - footer_length as u64)?;
    let footer = root_as_footer(&footer).map_err(|_| bad("the footer is damaged"))?;
    let schema = footer.schema().ok_or_else(|| bad("the footer has no schema"))?;
    // the conversion panics on types that no writer should produce
    let schema = std::panic::catch_unwind(|| convert::fb_to_schema(schema));
    let schema = Arc::new(schema.map_err(|_| bad("the schema has a type that is not known"))?);
    let mut decoder = FileDecoder::new(Arc::clone(&schema), footer.version());
    for block in footer.dictionaries().iter().flatten() {
        let data = read_block(&section, block)?;
        decoder.read_dictionary(block, &data).map_err(io_of)?;
    }
    let blocks = footer.recordBatches().map(|b| b.iter().copied().collect()).unwrap_or_default();
    Ok((Batches::File { section, decoder, blocks }, schema))
}

fn block_bytes(block: &Block) -> u64 {
    u64::try_from(block.metaDataLength()).unwrap_or(0) + u64::try_from(block.bodyLength()).unwrap_or(0)
}

/// A block in one aligned buffer; arrays become slices of it.
fn read_block(section: &Section, block: &Block) -> io::Result<Buffer> {
    let offset = u64::try_from(block.offset()).map_err(|_| io::ErrorKind::InvalidData)?;
    let length = block_bytes(block);
    // checked before the memory is allocated
    if offset.saturating_add(length) > section.byte_length() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut buffer = MutableBuffer::from_len_zeroed(usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?);
    section.read_exact_at(buffer.as_slice_mut(), offset)?;
    Ok(buffer.into())
}

struct ParquetSection(Section);

impl Length for ParquetSection {
    fn len(&self) -> u64 {
        self.0.byte_length()
    }
}

impl ChunkReader for ParquetSection {
    type T = io::BufReader<Section>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(io::BufReader::new(self.0.part(start, u64::MAX)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        if start.saturating_add(length as u64) > self.0.byte_length() {
            return Err(ParquetError::EOF("a column chunk reaches beyond the file".to_owned()));
        }
        let mut bytes = vec![0; length];
        self.0.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

fn open_parquet(section: Section) -> Result<(Batches, Arc<Schema>), NotRows> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(ParquetSection(section)).map_err(io_of_parquet)?;
    let schema = Arc::clone(builder.schema());
    let metadata = builder.metadata();
    let bytes: i64 = metadata.row_groups().iter().map(|g| g.total_byte_size()).sum();
    let rows: i64 = metadata.file_metadata().num_rows().max(1);
    let row_bytes = (bytes / rows).max(1);
    let batch_rows = (PARQUET_BATCH_BYTES / row_bytes).clamp(1, 8_192);
    let batch_bytes = u64::try_from(batch_rows * row_bytes).unwrap_or(UNKNOWN_BATCH_BYTES);
    let batch_rows = usize::try_from(batch_rows).unwrap_or(1);
    let reader = builder.with_batch_size(batch_rows).build().map_err(io_of_parquet)?;
    Ok((Batches::Parquet { reader, batch_bytes }, schema))
}

impl Rows {
    /// About how many bytes the next batch takes.
    pub(crate) fn next_bytes(&self) -> u64 {
        match &self.batches {
            Batches::File { blocks, .. } => blocks.front().map_or(0, block_bytes),
            Batches::Stream(_) => UNKNOWN_BATCH_BYTES,
            Batches::Parquet { batch_bytes, .. } => *batch_bytes,
        }
    }

    /// Number of the row that comes next.
    pub(crate) fn row_offset(&self) -> u64 {
        self.row_offset
    }

    /// The next batch as pieces of whole trajectories; none at the end. A piece may come without rows of the batch
    /// that was read for it, and a batch may give no piece.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<Piece>>> {
        if self.ended {
            return Ok(None);
        }
        let batch = match &mut self.batches {
            Batches::File { section, decoder, blocks } => match blocks.pop_front() {
                None => None,
                Some(block) => {
                    let data = read_block(section, &block)?;
                    decoder.read_record_batch(&block, &data).map_err(io_of)?
                }
            },
            Batches::Stream(reader) => reader.next().transpose().map_err(io_of)?,
            Batches::Parquet { reader, .. } => reader.next().transpose().map_err(io_of)?,
        };
        match batch {
            Some(batch) => self.cut(&batch).map(Some),
            None => {
                self.ended = true;
                let rest = std::mem::take(&mut self.carry);
                Ok(if rest.is_empty() { None } else { Some(vec![self.piece(rest)]) })
            }
        }
    }

    fn piece(&mut self, batches: Vec<RecordBatch>) -> Piece {
        let piece = Piece { batches, row_offset: self.row_offset };
        self.row_offset += piece.row_count();
        piece
    }

    /// Cuts a batch where one trajectory ends and enough rows have come together; the last trajectory is kept back.
    fn cut(&mut self, batch: &RecordBatch) -> io::Result<Vec<Piece>> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(Vec::new());
        }
        let ids = Ids::of(batch)?;
        let mut pieces = Vec::new();
        let row_bytes = (batch.get_array_memory_size() / rows).max(1);
        let piece_rows = (PIECE_BYTES / row_bytes).max(1);
        let continues = match self.carry.last() {
            Some(last) => Ids::of(last)?.same(last.num_rows() - 1, &ids, 0),
            None => false,
        };
        let mut start = 0;
        if !self.carry.is_empty() {
            let mut end = 0;
            if continues {
                end = 1;
                while end < rows && ids.same(end - 1, &ids, end) {
                    end += 1;
                }
                self.carry.push(batch.slice(0, end));
            }
            if end == rows {
                return Ok(pieces);
            }
            let whole = std::mem::take(&mut self.carry);
            pieces.push(self.piece(whole));
            start = end;
        }
        let mut last_cut = start;
        for row in start + 1..rows {
            if !ids.same(row - 1, &ids, row) {
                if row - last_cut >= piece_rows {
                    pieces.push(self.piece(vec![batch.slice(last_cut, row - last_cut)]));
                    last_cut = row;
                }
                start = row;
            }
        }
        // `start` is where the last trajectory begins
        let start = start.max(last_cut);
        if start > last_cut {
            pieces.push(self.piece(vec![batch.slice(last_cut, start - last_cut)]));
        }
        self.carry.push(batch.slice(start, rows - start));
        Ok(pieces)
    }
}

/// What tells trajectories apart: id and run.
struct Ids {
    id: TextColumn,
    run: Option<TextColumn>,
}

impl Ids {
    fn of(batch: &RecordBatch) -> io::Result<Self> {
        let text = |array: &ArrayRef| {
            let array = match array.data_type() {
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Arc::clone(array),
                _ => cast(array, &DataType::Utf8).map_err(io_of)?,
            };
            TextColumn::of(&array).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "ids are no text"))
        };
        let id = batch.column_by_name("trajectory_id").ok_or(io::ErrorKind::InvalidData)?;
        let run = batch.column_by_name("run_id").filter(|c| !matches!(c.data_type(), DataType::Null));
        Ok(Self { id: text(id)?, run: run.map(text).transpose()? })
    }

    fn same(&self, row: usize, other: &Self, other_row: usize) -> bool {
        let run = |ids: &'_ Self, row: usize| ids.run.as_ref().and_then(|r| r.get(row).map(str::to_owned));
        self.id.get(row) == other.id.get(other_row) && run(self, row) == run(other, other_row)
    }
}
