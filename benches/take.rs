//! Thirty-two random segments with everything, decoded: from the lake, cold and warm, against Parquet holding the
//! same encoded column read with row selectors, and against Parquet as anyone would write it. Both Parquet files are
//! read by this same program with the `parquet` crate.
//!
//! The lake decodes on all cores while it reads; a Parquet reader gives containers, and its user decodes them, here in a
//! loop. What it would take with the loop on all cores is noted, too.

mod harness;

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use arrow::array::{Array, AsArray, LargeBinaryArray, RecordBatch, UInt64Array};
use dressage_codec::synthetic::SeededRandom;
use dressage_codec::{Dtype, EncodeOptions, Encoder, Mode, RoutedView, decode_all};
use dressage_schemas::Table;
use dressage_storage::{Lake, ROW_ADDRESS, ScanOptions, Snapshot, StoreSettings};
use futures::TryStreamExt;
use harness::{Bench, dressage, forget_cache, ingest, median, scaled, text};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection, RowSelectionPolicy,
    RowSelector,
};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::properties::WriterProperties;

/// The command's own: what runs inside a benchmark is to run as it does there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROWS: usize = 32;
const TOKENS: usize = 16_384;
const COLUMNS: [&str; 4] = ["trajectory_key", "token_ids", "logprobs", "routed_experts"];
const ROUNDS: usize = 7;

fn main() {
    let mut bench = Bench::new("take");
    let trajectories = scaled(256).max(ROWS as u64);
    let count = trajectories.to_string();
    let load = bench.path("load.arrow");
    bench.synth(
        &load,
        &["--trajectories", &count, "--tokens", "16384", "--segments", "1", "--layers", "40", "--no-messages"],
    );
    let store = bench.path("store");
    ingest(&load, &store, &[]);
    // Files of one commit each would favour neither side; a store at rest has been compacted.
    dressage(&["store", "compact", "--store", &text(&store)]);

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let snapshot = runtime.block_on(open(&store));
    let addresses = runtime.block_on(addresses(&snapshot));
    assert_eq!(addresses.len(), trajectories as usize, "one step a trajectory");

    let dir = bench.path("parquet");
    std::fs::create_dir(&dir).expect("scratch can be written");
    let (encoded, naive) = (dir.join("encoded.parquet"), dir.join("naive.parquet"));
    runtime.block_on(write_parquet(&snapshot, &encoded, &naive));
    drop(snapshot);

    for cold in [true, false] {
        let when = if cold { "cold" } else { "warm" };
        let mut times: [Vec<f64>; 4] = Default::default();
        let warm_snapshot = runtime.block_on(open(&store));
        for round in 0..ROUNDS {
            let picked = pick(addresses.len(), round as u64);
            if cold {
                forget_cache(&store);
                forget_cache(&dir);
            }
            let start = Instant::now();
            // Cold means a process that opens the store for this one take.
            let opened = cold.then(|| runtime.block_on(open(&store)));
            let wanted: Vec<u64> = picked.iter().map(|row| addresses[*row]).collect();
            let snapshot = opened.as_ref().unwrap_or(&warm_snapshot);
            let (batch, routes) = runtime
                .block_on(async {
                    let columns: Vec<String> = COLUMNS[..3].iter().map(|name| (*name).to_owned()).collect();
                    let plain = snapshot.take(Table::Steps, &wanted, &columns);
                    tokio::try_join!(plain, snapshot.take_routes(&wanted)).map(|(plain, routes)| (plain, routes))
                })
                .expect("the rows are there");
            assert_eq!(batch.num_rows(), ROWS);
            let ids: usize = routes.iter().flatten().map(|routes| routes.bytes.len()).sum();
            times[0].push(start.elapsed().as_secs_f64());
            assert_eq!(ids, ROWS * (TOKENS - 1) * 320);

            let start = Instant::now();
            let batches = take_parquet(&encoded, &picked);
            assert_eq!(batches.iter().map(decoded_ids).sum::<usize>(), ids);
            times[1].push(start.elapsed().as_secs_f64());

            let start = Instant::now();
            let batches = take_parquet_as_anyone(&naive, &picked);
            assert_eq!(batches.iter().map(raw_ids).sum::<usize>(), ids);
            times[2].push(start.elapsed().as_secs_f64());

            if cold {
                forget_cache(&dir);
            }
            let start = Instant::now();
            let batches = take_parquet(&encoded, &picked);
            assert_eq!(decoded_ids_on_all_cores(&batches), ids);
            times[3].push(start.elapsed().as_secs_f64());
        }
        let [ours, selectors, anyone, threaded] = times.map(median);
        bench.note(&format!("{when}: lake"), ours * 1e3, "ms");
        bench.note(&format!("{when}: Parquet, same codec, selectors"), selectors * 1e3, "ms");
        bench.note(&format!("{when}: Parquet as anyone would"), anyone * 1e3, "ms");
        bench.note(&format!("{when}: Parquet, same codec, selectors, decoded on all cores"), threaded * 1e3, "ms");
        let bound = if cold { 0.45 } else { 0.8 };
        bench.at_most(&format!("{when}: of Parquet with codec and selectors"), ours / selectors, bound, "x");
        bench.at_most(&format!("{when}: of Parquet as anyone would"), ours / anyone, 0.2, "x");
    }
    metadata_reads_no_payload(&mut bench, &runtime, &store);
}

async fn open(store: &Path) -> Snapshot {
    let lake = Lake::open(StoreSettings::at(text(store))).await.expect("the store opens");
    lake.snapshot(None).await.expect("a snapshot")
}

async fn addresses(snapshot: &Snapshot) -> Vec<u64> {
    let options = ScanOptions::columns(["trajectory_key"]).with_row_address();
    let stream = snapshot.scan(Table::Steps, options).await.expect("a scan");
    let batches: Vec<RecordBatch> = stream.try_collect().await.expect("batches");
    let of = |batch: &RecordBatch| -> Vec<u64> {
        let column = batch.column_by_name(ROW_ADDRESS).expect("asked for");
        column.as_any().downcast_ref::<UInt64Array>().expect("addresses are u64").values().to_vec()
    };
    batches.iter().flat_map(of).collect()
}

/// Distinct rows, ascending, as a shuffled epoch's batch would be sorted before reading.
fn pick(rows: usize, seed: u64) -> Vec<usize> {
    let mut random = SeededRandom::stream(seed, 77);
    let mut picked = std::collections::BTreeSet::new();
    while picked.len() < ROWS {
        picked.insert(random.below(rows as u64) as usize);
    }
    picked.into_iter().collect()
}

fn binary<'a>(batch: &'a RecordBatch, name: &str) -> &'a LargeBinaryArray {
    batch.column_by_name(name).expect("a payload column").as_binary::<i64>()
}

/// Decodes every container of the batch; gives the number of ids.
fn decoded_ids(batch: &RecordBatch) -> usize {
    let containers = binary(batch, "routed_experts");
    (0..containers.len()).map(|row| decode_all(containers.value(row)).expect("our own container").bytes.len()).sum()
}

/// The same, by as many threads as there are cores.
fn decoded_ids_on_all_cores(batches: &[RecordBatch]) -> usize {
    let containers: Vec<&[u8]> =
        batches.iter().flat_map(|batch| binary(batch, "routed_experts").iter().flatten()).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let decode = |part: &[&[u8]]| -> usize {
        part.iter().map(|container| decode_all(container).expect("our own container").bytes.len()).sum()
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = containers
            .chunks(containers.len().div_ceil(cores).max(1))
            .map(|part| scope.spawn(move || decode(part)))
            .collect();
        parts.into_iter().map(|part| part.join().expect("it decodes")).sum()
    })
}

fn raw_ids(batch: &RecordBatch) -> usize {
    let raw = binary(batch, "routed_experts");
    (0..raw.len()).map(|row| raw.value(row).len()).sum()
}

/// Writes the lake's steps twice: containers as they are, one row a page, page index on; and plain arrays under
/// default settings with zstd.
async fn write_parquet(snapshot: &Snapshot, encoded: &Path, naive: &Path) {
    let options = ScanOptions { batch_rows: 16, ..ScanOptions::columns(COLUMNS) };
    let mut stream = snapshot.scan(Table::Steps, options).await.expect("a scan");
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1).expect("a level"));
    let tuned = WriterProperties::builder()
        .set_compression(zstd)
        .set_dictionary_enabled(false)
        .set_column_compression("routed_experts".into(), Compression::UNCOMPRESSED)
        .set_column_encoding("trajectory_key".into(), Encoding::DELTA_BINARY_PACKED)
        .set_data_page_row_count_limit(1)
        .set_write_batch_size(1)
        .set_max_row_group_row_count(Some(64))
        .build();
    let usual = WriterProperties::builder().set_compression(zstd).build();
    let mut writers: Option<(ArrowWriter<File>, ArrowWriter<File>)> = None;
    let mut encoder = Encoder::new().expect("memory");
    while let Some(batch) = stream.try_next().await.expect("batches") {
        let (tuned_writer, usual_writer) = writers.get_or_insert_with(|| {
            let create = |path: &Path| File::create(path).expect("scratch can be written");
            (
                ArrowWriter::try_new(create(encoded), batch.schema(), Some(tuned.clone())).expect("a writer"),
                ArrowWriter::try_new(create(naive), batch.schema(), Some(usual.clone())).expect("a writer"),
            )
        });
        tuned_writer.write(&batch).expect("scratch can be written");
        let containers = binary(&batch, "routed_experts");
        let raw: Vec<Vec<u8>> = (0..containers.len())
            .map(|row| decode_all(containers.value(row)).expect("our own container").bytes)
            .collect();
        // The comparison is of layouts: the codec must give the same container again.
        let view = RoutedView::new(&raw[0], Dtype::Uint8, TOKENS - 1, 40, 8).expect("the load's shape");
        let options = EncodeOptions { n_experts: Some(128), ..EncodeOptions::new(Mode::Ranked) };
        assert!(encoder.encode(&view, &options).expect("in range").len() < raw[0].len());
        let mut columns = batch.columns().to_vec();
        let at = batch.schema().index_of("routed_experts").expect("a payload column");
        columns[at] = std::sync::Arc::new(LargeBinaryArray::from_iter_values(&raw));
        usual_writer.write(&RecordBatch::try_new(batch.schema(), columns).expect("same schema")).expect("written");
    }
    let (tuned_writer, usual_writer) = writers.expect("the store has rows");
    tuned_writer.close().expect("written");
    usual_writer.close().expect("written");
}

fn take_parquet(path: &Path, picked: &[usize]) -> Vec<RecordBatch> {
    let file = File::open(path).expect("our own file");
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
    let metadata = ArrowReaderMetadata::load(&file, options).expect("our own file");
    let mut selectors = Vec::new();
    let mut next = 0;
    for row in picked {
        if *row > next {
            selectors.push(RowSelector::skip(row - next));
        }
        selectors.push(RowSelector::select(1));
        next = row + 1;
    }
    ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
        .with_row_selection(RowSelection::from(selectors))
        .with_row_selection_policy(RowSelectionPolicy::Selectors)
        .build()
        .expect("our own file")
        .collect::<Result<_, _>>()
        .expect("our own file")
}

/// Reads the columns and keeps the rows: what a program without an index of pages does.
fn take_parquet_as_anyone(path: &Path, picked: &[usize]) -> Vec<RecordBatch> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).expect("our own file")).expect("ours");
    let mut kept = Vec::new();
    let mut first = 0;
    for batch in builder.with_batch_size(64).build().expect("our own file") {
        let batch = batch.expect("our own file");
        let inside = picked.iter().filter(|row| (first..first + batch.num_rows()).contains(row));
        kept.extend(inside.map(|row| batch.slice(row - first, 1)));
        first += batch.num_rows();
    }
    kept
}

fn metadata_reads_no_payload(bench: &mut Bench, runtime: &tokio::runtime::Runtime, store: &Path) {
    let (read, payload) = runtime.block_on(async {
        let snapshot = open(store).await;
        let before = snapshot.io_stats().await.expect("counters").read_bytes;
        let options = ScanOptions::columns(["trajectory_key", "n_context_tokens", "n_output_tokens", "mask_spans"]);
        let stream = snapshot.scan(Table::Steps, options).await.expect("a scan");
        let batches: Vec<RecordBatch> = stream.try_collect().await.expect("batches");
        assert!(!batches.is_empty());
        let after = snapshot.io_stats().await.expect("counters").read_bytes;
        (after - before, harness::folder_bytes(&store.join("steps.lance")))
    });
    bench.note("metadata scan of steps, bytes read", read as f64, "B");
    bench.at_most("metadata scan, of the table's bytes", read as f64 / payload as f64, 0.01, "x");
}
