//! Which parameters are sent together.

/// An f32 number.
const NUMBER_BYTES: u64 = 4;

/// Parameters that are sent in one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bucket {
    /// Their places in the model.
    pub(super) parameters: Vec<usize>,
    /// The unit after whose backward all of them have their gradient.
    pub(super) ready_after: usize,
}

/// Buckets in the order in which they become ready: filled up to `bytes_max`, which one large parameter may exceed alone.
pub(super) fn buckets_of(units: &[Vec<usize>], numels: &[usize], bytes_max: u64) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut filled = 0u64;
    for (unit, parameters) in units.iter().enumerate() {
        for parameter in parameters {
            let bytes = numels[*parameter] as u64 * NUMBER_BYTES;
            if buckets.is_empty() || filled.saturating_add(bytes) > bytes_max {
                buckets.push(Bucket { parameters: Vec::new(), ready_after: unit });
                filled = 0;
            }
            filled += bytes;
            if let Some(bucket) = buckets.last_mut() {
                bucket.parameters.push(*parameter);
                bucket.ready_after = unit;
            }
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(units: &[Vec<usize>], bytes_max: u64) -> Vec<(Vec<usize>, usize)> {
        let buckets = buckets_of(units, &[100, 10, 10, 10], bytes_max);
        buckets.into_iter().map(|bucket| (bucket.parameters, bucket.ready_after)).collect()
    }

    #[test]
    fn buckets_are_filled_in_the_order_of_the_backward_pass() {
        let units = [vec![3], vec![1, 2], vec![0]];
        assert_eq!(buckets(&units, 80), [(vec![3, 1], 1), (vec![2], 1), (vec![0], 2)]);
        assert_eq!(buckets(&units, 1 << 20), [(vec![3, 1, 2, 0], 2)]);
        assert_eq!(buckets(&units, 1), [(vec![3], 0), (vec![1], 1), (vec![2], 1), (vec![0], 2)]);
    }
}
