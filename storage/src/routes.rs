//! Router choices of many steps whole, decoded: some are read while others are decoded, on all cores.

use std::ops::Range;
use std::sync::Arc;

use dressage_codec::{Decoder, Header, Routes};
use dressage_schemas::Table;
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;

use crate::error::{Cause, Error, Result};
use crate::scan;
use crate::snapshot::Snapshot;

/// Values that one thread reads and decodes in a row: enough to share requests, few enough to level the cores.
const VALUES_A_CHUNK: usize = 4;

impl Snapshot {
    /// The routed experts of steps, decoded in the type in which they were given, in the order of the addresses; none
    /// where a step has none. An address may come twice. Holds what it gives, and as much of the stored form as all
    /// cores decode at once.
    ///
    /// # Errors
    /// `NotFound` where an address is not in this version, `Corrupt` for a value that does not decode.
    pub async fn take_routes(&self, row_addresses: &[u64]) -> Result<Vec<Option<Routes>>> {
        let dataset = self.dataset(Table::Steps)?;
        let mut sorted = row_addresses.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let chunks: Vec<Vec<u64>> = sorted.chunks(VALUES_A_CHUNK).map(<[u64]>::to_vec).collect();
        // one more than can be decoded, so that none waits for a read
        let decoded = futures::stream::iter(chunks).map(|chunk| read_chunk(Arc::clone(dataset), chunk));
        let mut decoded: Vec<Option<Routes>> = decoded.buffered(cores + 1).try_concat().await?;
        if sorted == row_addresses {
            return Ok(decoded);
        }
        let mut wanted: Vec<(usize, usize)> = row_addresses
            .iter()
            .enumerate()
            .map(|(place, address)| (sorted.partition_point(|known| known < address), place))
            .collect();
        wanted.sort_unstable();
        let mut routes: Vec<Option<Routes>> = vec![None; wanted.len()];
        for (i, (from, place)) in wanted.iter().enumerate() {
            let again = wanted.get(i + 1).is_some_and(|(next, _)| next == from);
            routes[*place] = if again { decoded[*from].clone() } else { decoded[*from].take() };
        }
        Ok(routes)
    }
}

async fn read_chunk(dataset: Arc<Dataset>, addresses: Vec<u64>) -> Result<Vec<Option<Routes>>> {
    let values = scan::take_blobs(&dataset, &addresses).await?;
    let decoded = tokio::task::spawn_blocking(move || {
        let mut decoder = Decoder::new().map_err(|e| damaged(&e))?;
        values.iter().map(|value| value.as_deref().map(|value| whole(&mut decoder, value)).transpose()).collect()
    });
    match decoded.await {
        Ok(routes) => routes,
        Err(lost) => Err(Error::TaskLost { what: "decoding routed experts", source: Cause::of(&lost) }),
    }
}

fn whole(decoder: &mut Decoder, container: &[u8]) -> Result<Routes> {
    let layout = *Header::parse(container).map_err(|e| damaged(&e))?.layout();
    let (rows, layers): (Range<usize>, Range<usize>) = (0..layout.rows, 0..layout.layers);
    decoder.decode_slice(container, rows, layers).map_err(|e| damaged(&e))
}

fn damaged(error: &dressage_codec::Error) -> Error {
    Error::Damaged { table: Table::Steps, detail: format!("routed experts: {error}") }
}
