//! Steps on their way to data files: each batch is written as it comes, so that a group of any size takes the memory
//! of a few batches.

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use dressage_schemas::Table;
use lance::dataset::transaction::Transaction;
use lance::dataset::{InsertBuilder, WriteMode};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::{Cause, Error, Result};
use crate::lake::Lake;
use crate::physical;

/// Batches between the caller and the file writer. One more is being written and one is in the caller's hands.
const QUEUE_BATCHES_MAX: usize = 1;

type Item = std::result::Result<RecordBatch, ArrowError>;

/// Files being written. Dropped before [`finish`](Self::finish), they stay uncommitted and are collected as garbage.
pub(super) struct StepStream {
    sender: mpsc::Sender<Item>,
    task: JoinHandle<lance::Result<Transaction>>,
    rows: u64,
}

impl StepStream {
    pub(super) async fn open(lake: &Lake) -> Result<Self> {
        let dataset = lake.any(Table::Steps).await?;
        let params = lake.write_params(WriteMode::Append);
        let (sender, receiver) = mpsc::channel(QUEUE_BATCHES_MAX);
        let reader = ChannelReader { receiver, schema: physical::schema(Table::Steps) };
        let task = tokio::spawn(async move {
            let reader: Box<dyn RecordBatchReader + Send> = Box::new(reader);
            InsertBuilder::new(dataset).with_params(&params).execute_uncommitted_stream(reader).await
        });
        Ok(Self { sender, task, rows: 0 })
    }

    /// Takes one batch; waits while the file writer is busy.
    pub(super) async fn send(&mut self, batch: &RecordBatch) -> Result<()> {
        let physical = physical::to_physical(Table::Steps, batch)?;
        self.rows += batch.num_rows() as u64;
        if self.sender.send(Ok(physical)).await.is_ok() {
            return Ok(());
        }
        // the file writer is gone: its result says why
        match (&mut self.task).await {
            Ok(Err(e)) => Err(Error::table("write", Table::Steps, e)),
            Ok(Ok(_)) => Err(Error::TaskLost { what: "writing steps", source: Cause::words("it stopped early") }),
            Err(lost) => Err(Error::TaskLost { what: "writing steps", source: Cause::of(&lost) }),
        }
    }

    /// Ends the files and gives what is to be committed, with the number of rows.
    pub(super) async fn finish(self) -> Result<(Transaction, u64)> {
        drop(self.sender);
        match self.task.await {
            Ok(Ok(transaction)) => Ok((transaction, self.rows)),
            Ok(Err(e)) => Err(Error::table("write", Table::Steps, e)),
            Err(lost) => Err(Error::TaskLost { what: "writing steps", source: Cause::of(&lost) }),
        }
    }
}

/// The receiving end as the file writer wants it. It is called on a thread that may block.
struct ChannelReader {
    receiver: mpsc::Receiver<Item>,
    schema: SchemaRef,
}

impl Iterator for ChannelReader {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        self.receiver.blocking_recv()
    }
}

impl RecordBatchReader for ChannelReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
