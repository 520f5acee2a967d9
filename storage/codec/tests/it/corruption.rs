//! Whatever the bytes, decoding ends in an error or in ids, never in a panic.

use dressage_codec::synthetic::SeededRandom;
use dressage_codec::{Dtype, Error, Header, Mode, RoutedView, decode_all, encode};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::round_trip::synthetic;

fn containers() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for mode in [Mode::Set, Mode::Ranked] {
        for (rows, layers, n_experts) in [(1_500, 4, 64), (70, 3, 128), (1_100, 2, 300)] {
            let bytes = synthetic(rows, layers, 8, n_experts);
            let view = RoutedView::new(&bytes, Dtype::narrowest(n_experts), rows, layers, 8).unwrap();
            all.push(encode(&view, mode, Some(n_experts)).unwrap());
        }
    }
    all
}

/// Makes checksums true again, so that what lies behind them is tested too.
fn resign(container: &mut [u8]) {
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let head_len = word(container, 28);
    let map_len = word(container, 32);
    if head_len > container.len() || head_len < 40 || map_len > head_len - 40 {
        return;
    }
    let mut frame = head_len;
    for entry in (40..head_len - map_len - 7).step_by(8) {
        let length = word(container, entry);
        let Some(bytes) = container.get(frame..frame + length) else { break };
        let sum = xxh3_64(bytes) as u32;
        container[entry + 4..entry + 8].copy_from_slice(&sum.to_le_bytes());
        frame += length;
    }
    let mut hasher = Xxh3::new();
    hasher.update(&container[..36]);
    hasher.update(&container[40..head_len]);
    let sum = hasher.digest() as u32;
    container[36..40].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn every_single_byte_change_is_noticed() {
    for original in containers() {
        let header = Header::parse(&original).unwrap();
        header.verify(&original).unwrap();
        let mut random = SeededRandom::new(3);
        for _ in 0..400 {
            let mut damaged = original.clone();
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] ^= 1 + random.below(255) as u8;
            assert!(decode_all(&damaged).is_err(), "byte {at} of {}", damaged.len());
            let verified = Header::parse(&damaged).and_then(|header| header.verify(&damaged));
            assert!(verified.is_err(), "byte {at} passed the check");
        }
    }
}

#[test]
fn damage_behind_true_checksums_never_panics() {
    let mut decoded = 0;
    for original in containers() {
        let mut random = SeededRandom::new(4);
        for round in 0..1_500 {
            let mut damaged = original.clone();
            // Half of the damage goes to the head and the piece tables, where it does most.
            let reach = if round % 2 == 0 { 200.min(damaged.len()) } else { damaged.len() };
            for _ in 0..1 + random.below(4) {
                let at = random.below(reach as u64) as usize;
                damaged[at] = match random.below(4) {
                    0 => 0,
                    1 => 255,
                    _ => random.next_u64() as u8,
                };
            }
            resign(&mut damaged);
            decoded += usize::from(decode_all(&damaged).is_ok());
        }
    }
    assert!(decoded > 0, "no damaged container got past the checksums, so nothing behind them was tested");
}

#[test]
fn truncation_at_any_length_is_an_error() {
    for original in containers() {
        for length in (0..original.len()).step_by(1 + original.len() / 500) {
            let error = decode_all(&original[..length]).unwrap_err();
            assert!(error.is_corrupt(), "{error} at {length}");
        }
    }
}

#[test]
fn random_bytes_are_an_error() {
    let mut random = SeededRandom::new(9);
    for length in 0..2_000 {
        let mut bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        assert!(decode_all(&bytes).is_err());
        if length >= 40 {
            bytes[..8].copy_from_slice(b"DRXE\x01\x00\x01\x00");
            resign(&mut bytes);
            assert!(decode_all(&bytes).is_err());
        }
    }
}

#[test]
fn a_newer_version_says_so() {
    let mut container = containers().remove(0);
    container[4] = 9;
    assert_eq!(decode_all(&container).unwrap_err(), Error::UnknownVersion { version: 9, supported: 1 });
}
