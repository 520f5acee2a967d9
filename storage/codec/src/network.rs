//! The sorting network of a top-k: which pairs of planes to compare and swap, in which order.
//!
//! A network has no branches that depend on data, so every lane of a tile (one token each) is sorted at once with
//! vector minimum and maximum. Batcher's odd-even merge exchange (Knuth, volume 3, algorithm 5.2.2M) works for any
//! number of inputs and is optimal at eight (19 exchanges).

/// Pairs `(low, high)` of plane numbers, `low < high`.
pub(crate) fn exchanges(inputs: usize) -> Vec<(u8, u8)> {
    let mut pairs = Vec::new();
    if inputs < 2 {
        return pairs;
    }
    let top = inputs.next_power_of_two() / 2;
    let mut p = top;
    while p > 0 {
        let (mut q, mut r, mut d) = (top, 0, p);
        loop {
            for i in (0..inputs - d).filter(|i| i & p == r) {
                pairs.push((i as u8, (i + d) as u8));
            }
            if q == p {
                break;
            }
            d = q - p;
            q /= 2;
            r = p;
        }
        p /= 2;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_zero_one_input_is_sorted() {
        // By the 0-1 principle a network that sorts every input of zeros and ones sorts everything.
        for inputs in 1..=16_usize {
            let pairs = exchanges(inputs);
            for bits in 0..1_u32 << inputs {
                let mut values: Vec<u32> = (0..inputs).map(|i| bits >> i & 1).collect();
                for &(low, high) in &pairs {
                    let (a, b) = (values[low as usize], values[high as usize]);
                    values[low as usize] = a.min(b);
                    values[high as usize] = a.max(b);
                }
                assert!(values.is_sorted(), "{inputs} inputs, pattern {bits:b}");
            }
        }
    }

    #[test]
    fn the_unrolled_network_of_eight_is_this_one() {
        let unrolled = crate::lanes::EXCHANGES_OF_EIGHT.map(|(low, high)| (low as u8, high as u8));
        assert_eq!(exchanges(8), unrolled);
    }
}
