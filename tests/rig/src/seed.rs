//! The one source of chance in a test: a seed that is printed, and taken from the environment to play a run again.

use std::time::{SystemTime, UNIX_EPOCH};

/// A SplitMix64 stream. Every random decision of a test comes from one, so that the printed number is enough to
/// repeat it.
#[derive(Debug, Clone)]
pub struct Seed {
    state: u64,
}

impl Seed {
    /// The seed of this run: `$DRESSAGE_RIG_SEED` where set, else the clock's. It is printed with `label`, which the
    /// test harness shows when the test fails.
    pub fn of_run(label: &str) -> Self {
        let given = std::env::var("DRESSAGE_RIG_SEED").ok().and_then(|text| text.trim().parse().ok());
        let number = given.unwrap_or_else(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007)
        });
        eprintln!("{label}: DRESSAGE_RIG_SEED={number}");
        Self::new(number)
    }

    /// The stream of that number.
    pub fn new(number: u64) -> Self {
        Self { state: number }
    }

    /// An independent stream for one part of a test, so that adding a draw to one part does not shift the others.
    pub fn fork(&self, part: u64) -> Self {
        let mut fork = Self { state: self.state ^ part.wrapping_mul(0xD6E8_FEB8_6659_FD93) };
        fork.next();
        fork
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "an endless stream, not an iterator to be collected")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..end`; 0 where `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias of a modulus over 64 bits is far below anything that a test of this size could see.
        if end == 0 { 0 } else { self.next() % end }
    }

    /// A number in `0.0..1.0`.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Seed;

    #[test]
    fn the_same_number_gives_the_same_stream_and_forks_differ() {
        let draws = |mut seed: Seed| [seed.next(), seed.next(), seed.next()];
        assert_eq!(draws(Seed::new(7)), draws(Seed::new(7)));
        assert_ne!(draws(Seed::new(7)), draws(Seed::new(8)));
        assert_ne!(draws(Seed::new(7).fork(1)), draws(Seed::new(7).fork(2)));
        let mut seed = Seed::new(3);
        assert!((0..1000).all(|_| seed.below(10) < 10 && (0.0..1.0).contains(&seed.fraction())));
    }
}
