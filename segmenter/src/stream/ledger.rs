//! What micro-batches were when they were first given out: hashes in table `streamed`, compared whenever one is made again.

use std::collections::HashMap;
use std::ops::Range;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int32Type, TimestampMicrosecondType};
use dressage_schemas::Table;
use dressage_schemas::tables::streamed::StreamedRow;
use dressage_storage::ScanOptions;
use futures::TryStreamExt;

use super::plan::StoredPlan;
use super::reader::MicroBatch;
use crate::error::{Error, Result};

/// The hashes of a micro-batch that was streamed before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recorded {
    /// Of its values.
    pub content_hash: String,
    /// Of its router choices; none where they were never streamed.
    pub experts_hash: Option<String>,
}

/// How a micro-batch compares with what was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is what was streamed before.
    Same,
    /// It was not streamed before, or not with router choices.
    New,
    /// It has no hash.
    Unhashed,
}

/// Hashes of a plan's micro-batches, and those that are new.
#[derive(Debug)]
pub struct Ledger {
    plan_id: String,
    known: HashMap<(i32, u32, i32), Recorded>,
    new: Vec<StreamedRow>,
}

impl Ledger {
    /// What was recorded of these train steps, of one rank or of all.
    ///
    /// # Errors
    /// What the store says; `Corrupt` where two records of one micro-batch differ.
    pub async fn of(plan: &StoredPlan, dp_rank: Option<u32>, train_steps: Option<Range<u32>>) -> Result<Self> {
        let mut filter = format!("plan_id = '{}'", plan.plan_id());
        if let Some(rank) = dp_rank {
            filter.push_str(&format!(" AND dp_rank = {rank}"));
        }
        if let Some(steps) = train_steps {
            filter.push_str(&format!(" AND train_step >= {} AND train_step < {}", steps.start, steps.end));
        }
        let columns = ["train_step", "dp_rank", "micro_batch", "content_hash", "experts_hash", "streamed_at"];
        let options = ScanOptions::columns(columns).filter(filter);
        let mut found = plan.newest().scan(Table::Streamed, options).await.map_err(Error::storage)?;
        let mut rows = Vec::new();
        while let Some(batch) = found.try_next().await.map_err(Error::storage)? {
            let missing = |name: &'static str| {
                move || Error::ViewShape {
                    column: name.to_owned(),
                    problem: "of table streamed is missing or has another type".to_owned(),
                }
            };
            let int = |name: &'static str| {
                let column = batch.column_by_name(name).and_then(|c| c.as_primitive_opt::<Int32Type>());
                column.ok_or_else(missing(name))
            };
            let text = |name: &'static str| {
                batch.column_by_name(name).and_then(|c| c.as_string_opt::<i32>()).ok_or_else(missing(name))
            };
            let at = batch.column_by_name("streamed_at").and_then(|c| c.as_primitive_opt::<TimestampMicrosecondType>());
            let at = at.ok_or_else(missing("streamed_at"))?;
            let (step, rank, micro_batch) = (int("train_step")?, int("dp_rank")?, int("micro_batch")?);
            let (content, experts) = (text("content_hash")?, text("experts_hash")?);
            for row in 0..batch.num_rows() {
                let place =
                    (step.value(row), u32::try_from(rank.value(row)).unwrap_or(u32::MAX), micro_batch.value(row));
                let recorded = Recorded {
                    content_hash: content.value(row).to_owned(),
                    experts_hash: experts.is_valid(row).then(|| experts.value(row).to_owned()),
                };
                rows.push((at.value(row), place, recorded));
            }
        }
        rows.sort_by_key(|(at, place, _)| (*at, *place));
        let mut ledger = Self { plan_id: plan.plan_id().to_owned(), known: HashMap::new(), new: Vec::new() };
        for (_, place, recorded) in rows {
            ledger.agree(place, &recorded)?;
        }
        Ok(ledger)
    }

    /// Whether any micro-batch was recorded with router choices.
    pub fn has_experts(&self) -> bool {
        self.known.values().any(|recorded| recorded.experts_hash.is_some())
    }

    /// What was recorded of a micro-batch.
    pub fn recorded(&self, micro_batch: &MicroBatch) -> Option<&Recorded> {
        self.known.get(&place(micro_batch))
    }

    /// Compares a micro-batch with its record, and keeps its hash for [`take_new`](Self::take_new) where there is none.
    /// `streamed_at` is the time to record, microseconds.
    ///
    /// # Errors
    /// `Corrupt` where it is not what was streamed before.
    pub fn check(&mut self, micro_batch: &MicroBatch, streamed_at: i64) -> Result<Verdict> {
        let Some(content_hash) = micro_batch.content_hash else { return Ok(Verdict::Unhashed) };
        let made = Recorded {
            content_hash: content_hash.to_string(),
            experts_hash: micro_batch.experts_hash.map(|hash| hash.to_string()),
        };
        if !self.agree(place(micro_batch), &made)? {
            return Ok(Verdict::Same);
        }
        self.new.push(StreamedRow {
            plan_id: self.plan_id.clone(),
            train_step: micro_batch.train_step,
            dp_rank: i32::try_from(micro_batch.dp_rank).unwrap_or(i32::MAX),
            micro_batch: micro_batch.micro_batch,
            n_samples: micro_batch.batch.num_rows() as i64,
            n_tokens: micro_batch.n_tokens,
            content_hash: made.content_hash,
            experts_hash: made.experts_hash,
            streamed_at,
        });
        Ok(Verdict::New)
    }

    /// Rows for table `streamed` that are not yet in it, and forgets them.
    pub fn take_new(&mut self) -> Vec<StreamedRow> {
        std::mem::take(&mut self.new)
    }

    /// How many rows [`take_new`](Self::take_new) would give.
    pub fn n_new(&self) -> usize {
        self.new.len()
    }

    /// Whether these hashes say something that was not known.
    fn agree(&mut self, place: (i32, u32, i32), made: &Recorded) -> Result<bool> {
        let Some(known) = self.known.get_mut(&place) else {
            self.known.insert(place, made.clone());
            return Ok(true);
        };
        let differs = |what, recorded: &str, made: &str| Error::HashMismatch {
            plan_id: self.plan_id.clone(),
            train_step: place.0,
            dp_rank: place.1,
            micro_batch: place.2,
            what,
            recorded: recorded.to_owned(),
            made: made.to_owned(),
        };
        if known.content_hash != made.content_hash {
            return Err(differs("values", &known.content_hash, &made.content_hash));
        }
        match (&known.experts_hash, &made.experts_hash) {
            (Some(known), Some(made)) if known != made => Err(differs("router choices", known, made)),
            (None, Some(_)) => {
                known.experts_hash.clone_from(&made.experts_hash);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

fn place(micro_batch: &MicroBatch) -> (i32, u32, i32) {
    (micro_batch.train_step, micro_batch.dp_rank, micro_batch.micro_batch)
}
