//! Draws that depend on nothing but their place: a hash of seed, sequence and token.

/// From 0 to below 1.
pub(super) fn draw(seed: u64, sequence: usize, token: usize) -> f64 {
    let mixed = mix(mix(mix(seed) ^ sequence as u64) ^ token as u64);
    // as many bits as a double holds
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_spread_evenly_and_differ_by_every_argument() {
        let draws: Vec<f64> = (0..100).flat_map(|s| (0..100).map(move |t| draw(7, s, t))).collect();
        let mut counts = [0; 10];
        for draw in &draws {
            assert!((0.0..1.0).contains(draw));
            counts[(draw * 10.0) as usize] += 1;
        }
        // 1,000 each, with a deviation of 30
        assert!(counts.iter().all(|n| (850..1150).contains(n)), "{counts:?}");
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        assert!(draw(1, 2, 3) != draw(2, 2, 3) && draw(1, 2, 3) != draw(1, 3, 2));
    }
}
