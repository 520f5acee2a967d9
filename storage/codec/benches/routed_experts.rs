//! Ratio and speed of the routed-experts container on the synthetic routes, one core, against raw uint8, zstd-1 on
//! the raw bytes, and the reference's JSON form (base64 of int32).
//!
//! `cargo bench -p dressage-codec`; `ROWS`, `ROUNDS` and `EXPERTS` change the load.

use std::time::Duration;

use dressage_codec::synthetic::{RouterShape, SeededRandom, SyntheticRouter};
use dressage_codec::{Decoder, Dtype, EncodeOptions, Encoder, FrameRange, Header, Mode, RoutedView};

fn from_env(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Processor time of this thread: what "a core" means on a machine that others use too.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "the thread clock cannot be read");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Best of `rounds`, in GB of `bytes` a second of processor time.
fn best(rounds: usize, bytes: usize, mut work: impl FnMut()) -> f64 {
    let seconds = (0..rounds)
        .map(|_| {
            let start = thread_time();
            work();
            (thread_time() - start).as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    bytes as f64 / seconds / 1e9
}

fn main() {
    let rows = from_env("ROWS", 16_383);
    let rounds = from_env("ROUNDS", 9);
    println!(
        "{:>7} {:>6} {:>7} {:>7} | {:>6} {:>7} {:>8} | {:>9} {:>9} | {:>9}",
        "experts", "layers", "rows", "mode", "/raw", "/zstd-1", "/b64 i32", "encode", "decode", "1 layer"
    );
    for (n_experts, layers, rows) in
        [(128, 40, rows), (128, 40, 200), (128, 40, 2_000), (256, 58, rows), (64, 26, rows), (384, 60, rows)]
    {
        if n_experts as usize != from_env("EXPERTS", n_experts as usize) {
            continue;
        }
        let shape = RouterShape { layers, n_experts, ..RouterShape::default() };
        let router = SyntheticRouter::new(shape, 1).expect("the shape is in bounds");
        let mut ids = Vec::new();
        router.append(rows, &mut SeededRandom::new(2), &mut ids);
        let n_ids = ids.len() / router.dtype().size();
        let zstd_bytes = zstd::bulk::compress(&ids, 1).expect("zstd compresses").len();
        let base64_bytes = n_ids * 4 * 4 / 3;
        for mode in [Mode::Set, Mode::Ranked] {
            let view = RoutedView::new(&ids, router.dtype(), rows, layers, 8).expect("the shape fits");
            let options = EncodeOptions { n_experts: Some(n_experts), ..EncodeOptions::new(mode) };
            let mut encoder = Encoder::new().expect("memory");
            let mut decoder = Decoder::new().expect("memory");
            let container = encoder.encode(&view, &options).expect("ids are in range");
            let encode = best(rounds, n_ids, || drop(encoder.encode(&view, &options).expect("ids are in range")));
            let mut plain = Vec::new();
            let decode = best(rounds, n_ids, || decode_into(&mut decoder, &container, router.dtype(), &mut plain));
            let one_layer = best(rounds, n_ids / layers, || {
                drop(decoder.decode_slice(&container, 0..rows, 3..4).expect("our own container"));
            });
            println!(
                "{n_experts:>7} {layers:>6} {rows:>7} {:>7} | {:>6.4} {:>7.4} {:>8.4} | {encode:>4.2} GB/s {decode:>4.2} GB/s | {one_layer:>4.2} GB/s",
                if mode == Mode::Set { "set" } else { "ranked" },
                container.len() as f64 / n_ids as f64,
                container.len() as f64 / zstd_bytes as f64,
                container.len() as f64 / base64_bytes as f64,
            );
        }
    }
    wider_sources(rows, rounds);
}

/// Everything, into a buffer kept between rounds, as a reader of many segments would.
fn decode_into(decoder: &mut Decoder, container: &[u8], dtype: Dtype, plain: &mut Vec<u8>) {
    let header = Header::parse(container).expect("our own container");
    let layout = *header.layout();
    let frame = |range: &FrameRange| container.get(range.bytes.start as usize..range.bytes.end as usize);
    decoder
        .decode_frames_into(&header, 0..layout.rows, 0..layout.layers, dtype, frame, plain)
        .expect("our own container");
}

/// The engine gives int32; the speed is stated in ids a second, as for uint8.
fn wider_sources(rows: usize, rounds: usize) {
    let router = SyntheticRouter::new(RouterShape::default(), 1).expect("the shape is in bounds");
    let mut ids = Vec::new();
    router.append(rows, &mut SeededRandom::new(2), &mut ids);
    let wide: Vec<u8> = ids.iter().flat_map(|id| u32::from(*id).to_le_bytes()).collect();
    let view = RoutedView::new(&wide, Dtype::Int32, rows, 40, 8).expect("the shape fits");
    let options = EncodeOptions { n_experts: Some(128), ..EncodeOptions::new(Mode::Set) };
    let mut encoder = Encoder::new().expect("memory");
    let mut decoder = Decoder::new().expect("memory");
    let container = encoder.encode(&view, &options).expect("ids are in range");
    let encode = best(rounds, ids.len(), || drop(encoder.encode(&view, &options).expect("ids are in range")));
    let mut plain = Vec::new();
    let decode = best(rounds, ids.len(), || decode_into(&mut decoder, &container, Dtype::Int32, &mut plain));
    println!("int32 in and out, 128 experts, set: encode {encode:.2} Gid/s, decode {decode:.2} Gid/s");
}
