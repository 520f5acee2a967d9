//! Steps: checksums, the door's rules once more, and what they refer to.

use arrow::array::{Array, Int32Array, Int64Array, LargeBinaryArray, ListArray, RecordBatch, StringArray, UInt64Array};
use dressage_codec::Header;
use dressage_schemas::Table;
use dressage_schemas::tables::steps::PAYLOAD_COLUMNS;

use super::ledger::Ledger;
use super::{Severity, for_each_batch};
use crate::door;
use crate::error::{Error, Result};
use crate::physical::{self, PAYLOAD_HASH, binary, row_addresses, typed};
use crate::scan::ScanOptions;
use crate::snapshot::Snapshot;

const T: Table = Table::Steps;

/// Reads all steps. Without `payload` only scalar columns are read.
pub(super) async fn check(snapshot: &Snapshot, payload: bool, ledger: &mut Ledger) -> Result<()> {
    let columns: Vec<String> = if payload {
        let mut all = physical::all_columns(T);
        all.push(PAYLOAD_HASH.to_owned());
        all
    } else {
        let scalar =
            ["trajectory_key", "write_id", "step_index", "n_context_tokens", "n_output_tokens", "messages", "tools"];
        scalar.map(str::to_owned).to_vec()
    };
    let options = ScanOptions::columns(columns).with_row_address();
    for_each_batch(snapshot, T, &options, ledger, |batch, ledger| {
        tally(batch, ledger)?;
        if payload { verify(batch, ledger) } else { Ok(()) }
    })
    .await
}

fn tally(batch: &RecordBatch, ledger: &mut Ledger) -> Result<()> {
    let key: &Int64Array = typed(T, batch, "trajectory_key")?;
    let write_id: &Int64Array = typed(T, batch, "write_id")?;
    let index: &Int32Array = typed(T, batch, "step_index")?;
    let n_context: &Int32Array = typed(T, batch, "n_context_tokens")?;
    let n_output: &Int32Array = typed(T, batch, "n_output_tokens")?;
    let addresses: &UInt64Array = row_addresses(T, batch)?;
    for row in 0..batch.num_rows() {
        let attempt = (key.value(row), write_id.value(row));
        let Some(tally) = ledger.attempts.get_mut(&attempt) else {
            ledger.note_orphan(T, attempt, addresses.value(row));
            continue;
        };
        tally.steps += 1;
        tally.tokens += i64::from(n_context.value(row)) + i64::from(n_output.value(row));
        tally.index_sum += i64::from(index.value(row));
        tally.index_max = tally.index_max.max(i64::from(index.value(row)));
    }
    let messages: &ListArray = typed(T, batch, "messages")?;
    let tools: &StringArray = typed(T, batch, "tools")?;
    let hashes = messages.values().as_any().downcast_ref::<StringArray>();
    let named = hashes.into_iter().flat_map(|h| h.iter().flatten()).chain(tools.iter().flatten());
    // rows left over count, too: as long as they are there, what they name stays
    for hash in named {
        match u128::from_str_radix(hash, 16) {
            Ok(bits) => {
                ledger.referenced.insert(bits);
            }
            Err(_) => ledger.note(
                Severity::Damage,
                "bad_reference",
                T,
                || format!("{hash:?}"),
                "a step names a message by something that is no content hash",
            ),
        }
    }
    Ok(())
}

fn verify(batch: &RecordBatch, ledger: &mut Ledger) -> Result<()> {
    let hashes: &Int64Array = typed(T, batch, PAYLOAD_HASH)?;
    let columns: [&LargeBinaryArray; 3] = [
        binary(T, batch, PAYLOAD_COLUMNS[0])?,
        binary(T, batch, PAYLOAD_COLUMNS[1])?,
        binary(T, batch, PAYLOAD_COLUMNS[2])?,
    ];
    let key: &Int64Array = typed(T, batch, "trajectory_key")?;
    let index: &Int32Array = typed(T, batch, "step_index")?;
    for row in 0..batch.num_rows() {
        let values = columns.map(|c| c.is_valid(row).then(|| c.value(row)));
        ledger.bytes_verified += values.iter().flatten().map(|v| v.len() as u64).sum::<u64>();
        let name = || format!("step {} of trajectory {:016x}", index.value(row), key.value(row));
        if physical::payload_hash(values) != hashes.value(row) {
            let what =
                "token ids, log-probs or routed experts are not the bytes that were written; ingest its source again";
            ledger.note(Severity::Damage, "payload_checksum", T, name, what);
        } else if let Some(container) = values[2]
            && let Err(error) = Header::parse(container).and_then(|header| header.verify(container))
        {
            let what = "the routed experts do not decode; they were written so";
            ledger.note(Severity::Damage, "routed_container", T, || format!("{}: {error}", name()), what);
        }
    }
    match door::check(T, batch) {
        Ok(()) => {}
        Err(Error::BadStep { trajectory_key, step_index, rule, detail }) => ledger.note(
            Severity::Damage,
            "step_rule",
            T,
            || format!("step {step_index} of trajectory {trajectory_key:016x}: {rule}: {detail}"),
            "a stored step contradicts itself",
        ),
        Err(other) => return Err(other),
    }
    Ok(())
}
