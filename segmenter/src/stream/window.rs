//! What is read together: some micro-batches in a row, as many as fit a share of the budget.

use std::ops::Range;

use super::plan::PlacedSample;

/// A window is at most this large, whatever the budget: larger ones only come later.
const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// The first window is at most this large, so that the first micro-batch comes soon; each one may be twice the last.
const WINDOW_BYTES_FIRST: u64 = 4 << 20;
/// Windows that the budget holds at once: one that is consumed, one that is put together, one that is read.
const WINDOWS_IN_BUDGET: u64 = 3;
/// Payload of one take, about: enough to make its fixed cost small, and several of them keep all cores decoding.
const TAKE_BYTES: u64 = 4 << 20;

/// Token-aligned bytes of a sample while it is in memory: ids and log-probs as read and as given out, positions, mask.
const BYTES_A_TOKEN: u64 = 4 + 4 + 4 + 4 + 4 + 1;
/// Scalars of a step and a sample, about.
const BYTES_A_ROW: u64 = 512;

/// One micro-batch of the plan: which samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) train_step: i32,
    pub(super) micro_batch: i32,
    /// Of the rank's samples.
    pub(super) samples: Range<usize>,
}

/// Some micro-batches that are read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    /// Of the rank's slots.
    pub(super) slots: Range<usize>,
    /// What it takes in memory, estimated.
    pub(super) bytes: u64,
}

/// Bytes that a sample takes in memory, estimated from the plan; `expert_bytes_a_token` is that of decoded router choices.
pub(super) fn sample_bytes(sample: &PlacedSample, expert_bytes_a_token: u64) -> u64 {
    let tokens = u64::try_from(sample.n_tokens).unwrap_or(0);
    // router choices are there as read, at most as large as plain, and decoded
    tokens * (BYTES_A_TOKEN + 2 * expert_bytes_a_token) + BYTES_A_ROW * (1 + sample.step_rows.len() as u64)
}

/// Cuts slots into windows. A micro-batch is never cut, so one may be larger than its share.
pub(super) fn windows(slots: &[Slot], bytes_of: impl Fn(&Slot) -> u64, prefetch_bytes: u64) -> Vec<Window> {
    let share = (prefetch_bytes / WINDOWS_IN_BUDGET).min(WINDOW_BYTES_MAX);
    let mut most = WINDOW_BYTES_FIRST.min(share);
    let mut windows: Vec<Window> = Vec::new();
    let mut open = Window { slots: 0..0, bytes: 0 };
    for (i, slot) in slots.iter().enumerate() {
        let bytes = bytes_of(slot);
        if !open.slots.is_empty() && open.bytes + bytes > most {
            windows.push(open);
            most = (most * 2).min(share);
            open = Window { slots: i..i, bytes: 0 };
        }
        open.slots.end = i + 1;
        open.bytes += bytes;
    }
    if !open.slots.is_empty() {
        windows.push(open);
    }
    windows
}

/// The addresses of a window in stored order, cut into takes of about [`TAKE_BYTES`], where it can be at the end of a
/// fragment: a take of one fragment is not copied together.
pub(super) fn takes(mut rows: Vec<(u64, u64)>) -> Vec<Vec<u64>> {
    rows.sort_unstable();
    rows.dedup_by_key(|(address, _)| *address);
    let mut takes = Vec::new();
    let mut open: Vec<u64> = Vec::new();
    let mut open_bytes = 0;
    for (address, bytes) in rows {
        let next_fragment = open.last().is_some_and(|last| last >> 32 != address >> 32);
        if open_bytes >= TAKE_BYTES || (next_fragment && open_bytes >= TAKE_BYTES / 2) {
            takes.push(std::mem::take(&mut open));
            open_bytes = 0;
        }
        open.push(address);
        open_bytes += bytes;
    }
    if !open.is_empty() {
        takes.push(open);
    }
    takes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slots(n: usize) -> Vec<Slot> {
        (0..n).map(|i| Slot { train_step: 0, micro_batch: i as i32, samples: i..i + 1 }).collect()
    }

    proptest! {
        #[test]
        fn windows_hold_every_slot_once_and_keep_to_their_share(
            sizes in proptest::collection::vec(0_u64..3_000_000, 0..60),
            prefetch_bytes in 1_u64..40_000_000,
        ) {
            let slots = slots(sizes.len());
            let windows = windows(&slots, |slot| sizes[slot.samples.start], prefetch_bytes);
            let mut next = 0;
            for window in &windows {
                prop_assert_eq!(window.slots.start, next);
                next = window.slots.end;
                let bytes: u64 = sizes[window.slots.clone()].iter().sum();
                prop_assert_eq!(bytes, window.bytes);
                prop_assert!(window.slots.len() == 1 || window.bytes <= prefetch_bytes / WINDOWS_IN_BUDGET);
            }
            prop_assert_eq!(next, slots.len());
        }

        #[test]
        fn takes_hold_every_address_once_in_stored_order(
            rows in proptest::collection::vec((0_u64..8, 0_u64..50, 0_u64..3_000_000), 0..80),
        ) {
            let mut addresses: Vec<u64> = rows.iter().map(|(f, row, _)| (f << 32) | row).collect();
            let takes = takes(rows.iter().map(|(f, row, bytes)| ((f << 32) | row, *bytes)).collect());
            prop_assert!(takes.iter().all(|take| !take.is_empty()));
            addresses.sort_unstable();
            addresses.dedup();
            prop_assert_eq!(takes.concat(), addresses);
        }
    }

    #[test]
    fn the_first_window_is_small_and_later_ones_grow() {
        let slots = slots(64);
        let windows = windows(&slots, |_| 2 << 20, 96 << 20);
        let sizes: Vec<usize> = windows.iter().map(|w| w.slots.len()).collect();
        assert_eq!(sizes, [2, 4, 8, 16, 16, 16, 2]);
    }
}
