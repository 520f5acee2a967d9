//! The checks of a segment's tokens, each naming the first bad one.

use arrow::datatypes::ArrowPrimitiveType;

use super::columns::{Columns, TokenList};
use super::error::BatchError;
use super::limits::{ModelLimits, Needs};

/// Refuses a row that does not fit together or does not fit the model.
pub(super) fn segment(columns: &Columns, row: usize, model: &ModelLimits, needs: Needs) -> Result<(), BatchError> {
    let n_tokens = length(columns, row)?;
    if n_tokens > model.positions_max {
        let at = columns.segment(row);
        return Err(BatchError::TooLong { at, n_tokens, positions_max: model.positions_max });
    }
    let token_ids = columns.token_ids.row(row);
    let outside = |id: &i32| usize::try_from(*id).map_or(true, |id| id >= model.vocab_size);
    if let Some(token) = token_ids.iter().position(outside) {
        let (at, token_id) = (columns.token(row, token), token_ids[token]);
        return Err(BatchError::TokenId { at, token_id, vocab_size: model.vocab_size });
    }
    let positions = columns.position_ids.row(row);
    if let Some(token) = positions.iter().zip(0_i32..).position(|(found, wanted)| *found != wanted) {
        return Err(BatchError::Position { at: columns.token(row, token), found: positions[token] });
    }
    let mask = columns.loss_mask.row(row);
    if let Some(token) = mask.iter().position(|bit| !matches!(bit, 0 | 1)) {
        return Err(BatchError::Mask { at: columns.token(row, token), found: mask[token] });
    }
    for (column, value) in [("advantage", columns.advantage(row)), ("loss_weight", columns.loss_weight(row))] {
        if !value.is_finite() {
            return Err(BatchError::NotFinite { at: columns.segment(row), column, value });
        }
    }
    if needs.logprobs { logprobs(columns, row) } else { Ok(()) }
}

/// The tokens of a row, which all of its lists must have.
fn length(columns: &Columns, row: usize) -> Result<usize, BatchError> {
    let n_tokens = columns.n_tokens(row);
    let tokens = usize::try_from(n_tokens).unwrap_or(0);
    if n_tokens == 0 {
        return Err(BatchError::NoTokens { at: columns.segment(row) });
    }
    aligned(columns, &columns.token_ids, row, tokens, true)?;
    aligned(columns, &columns.position_ids, row, tokens, true)?;
    aligned(columns, &columns.loss_mask, row, tokens, true)?;
    if let Some(list) = columns.logprobs.as_ref().filter(|list| list.is_valid(row)) {
        // a null among log-probs is one that is unknown
        aligned(columns, list, row, tokens, false)?;
    }
    Ok(tokens)
}

fn aligned<T: ArrowPrimitiveType>(
    columns: &Columns,
    list: &TokenList<T>,
    row: usize,
    n_tokens: usize,
    whole: bool,
) -> Result<(), BatchError> {
    let found = list.row(row).len();
    if found != n_tokens {
        let (at, n_tokens) = (columns.segment(row), columns.n_tokens(row).into());
        return Err(BatchError::ListLength { at, column: list.column, found, n_tokens });
    }
    if whole
        && list.has_null_items()
        && let Some(token) = (0..found).find(|item| list.is_null_item(row, *item))
    {
        return Err(BatchError::NullItem { at: columns.token(row, token), column: list.column });
    }
    Ok(())
}

/// Every trained token must have a log-prob. The first token of a segment is never trained.
fn logprobs(columns: &Columns, row: usize) -> Result<(), BatchError> {
    let mask = columns.loss_mask.row(row);
    let mut trained = mask.iter().enumerate().skip(1).filter(|(_, bit)| **bit == 1).map(|(token, _)| token);
    let missing = match columns.logprobs.as_ref().filter(|list| list.is_valid(row)) {
        Some(list) => {
            let values = list.row(row);
            trained.find(|token| !values[*token].is_finite() || list.is_null_item(row, *token))
        }
        None => trained.next(),
    };
    match missing {
        Some(token) => Err(BatchError::MissingLogprobs { at: columns.token(row, token) }),
        None => Ok(()),
    }
}
