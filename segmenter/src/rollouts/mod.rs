//! Trajectories as rows of the interchange schema: one whole segment a row, tokens as plain lists.
//!
//! The way out of the lake for `export`, and for anyone who wants a segment's tokens in one piece: the deltas that the
//! store keeps are put together here, with masks, log-probs, versions and router choices beside them.
//!
//! ```text
//!   trajectories (scalars, in key order) ─▶ chunks of bounded tokens ─▶ steps · segments · messages of the chunk
//!                                                                          └▶ one row a segment ─▶ RecordBatch
//! ```
//!
//! Memory holds one chunk: its payload is bounded by [`RolloutOptions::chunk_tokens_max`], or is one trajectory.

mod assemble;
mod conversation;
mod load;

use arrow::array::RecordBatch;
use dressage_schemas::tables::rollout;

use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::query::QueryStream;
use crate::session::Session;

pub use conversation::base64;

/// Which trajectories, and how much is held at once.
#[derive(Debug, Clone)]
pub struct RolloutOptions {
    /// A SQL condition on the view `trajectories`.
    pub condition: String,
    /// Tokens of the trajectories that are put together at once; a single longer trajectory is taken alone.
    pub chunk_tokens_max: u64,
    /// Trajectories that are put together at once.
    pub chunk_trajectories_max: usize,
    /// Whether token ids, masks, log-probs, versions and router choices are wanted; without them only messages are
    /// read.
    pub tokens: bool,
    /// Whether messages are given as role, content, reasoning and tool calls only, as chat tools read them; otherwise
    /// with their exact JSON, so that they come back the same.
    pub plain_messages: bool,
}

impl Default for RolloutOptions {
    fn default() -> Self {
        Self {
            condition: "true".to_owned(),
            chunk_tokens_max: 512 << 10,
            chunk_trajectories_max: 4096,
            tokens: true,
            plain_messages: false,
        }
    }
}

/// Rows of the interchange schema, in order of trajectory key and segment; those of one trajectory are adjacent.
#[derive(Debug)]
pub struct Rollouts<'a> {
    session: &'a Session,
    options: RolloutOptions,
    heads: QueryStream,
    /// Rows of `heads` that are not yet in a chunk.
    waiting: Option<(RecordBatch, usize)>,
    contents: load::Contents,
}

impl Session {
    /// Whole segments of the trajectories for which a condition holds.
    ///
    /// # Errors
    /// A condition that is not valid; what the store says.
    pub async fn rollouts(&self, options: RolloutOptions) -> Result<Rollouts<'_>> {
        let sql = format!(
            "SELECT trajectory_key, trajectory_id, instance_id, group_id, run_id, parent_trajectory_id, status, reward, \
             model, agent, created_at, labels, n_tokens FROM trajectories WHERE {} ORDER BY trajectory_key",
            options.condition
        );
        let heads = self.sql(&sql).await?;
        Ok(Rollouts { session: self, options, heads, waiting: None, contents: load::Contents::default() })
    }
}

impl Rollouts<'_> {
    /// The next rows; none at the end.
    ///
    /// # Errors
    /// What the store says; `Corrupt` where the parts of a segment do not fit together.
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let Some(heads) = self.next_heads().await? else { return Ok(None) };
        let parts = load::parts(self.session, &heads, self.options.tokens, &mut self.contents).await?;
        let rows = assemble::segments(&heads, &parts, &self.contents, self.options.plain_messages)?;
        assemble::batch(&rows).map(Some).map_err(|source| Error::Assemble {
            trajectory_id: heads.first().map(|h| h.trajectory_id.clone()).unwrap_or_default(),
            problem: format!("its rows do not fit the interchange schema: {source}"),
        })
    }

    /// The columns of the rows.
    pub fn schema(&self) -> arrow::datatypes::SchemaRef {
        rollout::schema()
    }

    /// The trajectories of the next chunk.
    async fn next_heads(&mut self) -> Result<Option<Vec<load::Head>>> {
        let mut chunk = Vec::new();
        let mut tokens: u64 = 0;
        loop {
            if self.waiting.as_ref().is_none_or(|(batch, next)| *next >= batch.num_rows()) {
                match self.heads.next_batch().await? {
                    Some(batch) => self.waiting = Some((batch, 0)),
                    None => break,
                }
            }
            let Some((batch, next)) = &mut self.waiting else { break };
            let columns = Columns::of(batch);
            while *next < batch.num_rows() {
                let head = load::Head::read(&columns, *next)?;
                let more = u64::try_from(head.n_tokens).unwrap_or(0);
                let full = chunk.len() >= self.options.chunk_trajectories_max
                    || tokens.saturating_add(more) > self.options.chunk_tokens_max;
                if full && !chunk.is_empty() {
                    return Ok(Some(chunk));
                }
                tokens = tokens.saturating_add(more);
                chunk.push(head);
                *next += 1;
            }
        }
        Ok((!chunk.is_empty()).then_some(chunk))
    }
}
