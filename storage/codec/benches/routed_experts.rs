//! Ratio and speed of the routed-experts container on the synthetic routes, one core, against raw uint8, zstd-1 on
//! the raw bytes, and the reference's JSON form (base64 of int32).
//!
//! `cargo bench -p dressage-codec`; `ROWS` and `ROUNDS` change the load.

use std::time::Instant;

use dressage_codec::synthetic::{RouterShape, SeededRandom, SyntheticRouter};
use dressage_codec::{Decoder, Dtype, EncodeOptions, Encoder, Mode, RoutedView};

fn from_env(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Best of `rounds`, in GB/s of `bytes`.
fn best(rounds: usize, bytes: usize, mut work: impl FnMut()) -> f64 {
    let seconds = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
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
            let decode = best(rounds, n_ids, || {
                drop(decoder.decode_slice(&container, 0..rows, 0..layers).expect("our own container"));
            });
            let start = Instant::now();
            drop(decoder.decode_slice(&container, 0..rows, 3..4).expect("our own container"));
            println!(
                "{n_experts:>7} {layers:>6} {rows:>7} {:>7} | {:>6.4} {:>7.4} {:>8.4} | {encode:>4.2} GB/s {decode:>4.2} GB/s | {:>6.2} ms",
                if mode == Mode::Set { "set" } else { "ranked" },
                container.len() as f64 / n_ids as f64,
                container.len() as f64 / zstd_bytes as f64,
                container.len() as f64 / base64_bytes as f64,
                start.elapsed().as_secs_f64() * 1e3,
            );
        }
    }
    wider_sources(rows, rounds);
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
    let decode = best(rounds, ids.len(), || {
        drop(decoder.decode_slice(&container, 0..rows, 0..40).expect("our own container"));
    });
    println!("int32 in and out, 128 experts, set: encode {encode:.2} Gid/s, decode {decode:.2} Gid/s");
}
