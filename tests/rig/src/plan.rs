//! What a fault proxy does to which request: rules, drawn from a seed.

use std::time::Duration;

use crate::Seed;

/// One way for an object store to let a client down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// 503 SlowDown; the server never saw the request.
    Busy,
    /// The connection is reset; the server never saw the request.
    ResetBefore,
    /// The server carries the request out, and the connection is reset before its answer: the client cannot know.
    AnswerLost,
    /// The server carries the request out, and the client is told 500: a client that retries by itself is then told
    /// that the object exists already, and takes its own write for somebody else's.
    FailedAfter,
    /// The head of the answer and half of its body, then a reset.
    BodyCut,
    /// The answer comes, later.
    Delay(Duration),
}

/// One rule: requests that match meet the fault with some probability.
#[derive(Debug, Clone)]
pub struct FaultRule {
    /// Methods it applies to; all where empty.
    pub methods: Vec<&'static str>,
    /// Text that the path must contain; all where empty.
    pub path_contains: &'static str,
    /// The fault.
    pub fault: Fault,
    /// Probability in thousandths; 1000 is every matching request.
    pub per_mille: u32,
    /// Matching requests that pass before the rule may strike.
    pub skip_first: u64,
    /// Strikes, at most.
    pub strikes_max: u64,
}

impl FaultRule {
    /// That fault on any request.
    pub fn any(fault: Fault, per_mille: u32) -> Self {
        Self { methods: Vec::new(), path_contains: "", fault, per_mille, skip_first: 0, strikes_max: u64::MAX }
    }

    /// Only on these methods.
    #[must_use]
    pub fn on(mut self, methods: &[&'static str]) -> Self {
        self.methods = methods.to_vec();
        self
    }

    /// Only on paths that contain this.
    #[must_use]
    pub fn under(mut self, path_contains: &'static str) -> Self {
        self.path_contains = path_contains;
        self
    }

    /// Only after so many matching requests have passed.
    #[must_use]
    pub fn after(mut self, skip_first: u64) -> Self {
        self.skip_first = skip_first;
        self
    }

    /// At most so often.
    #[must_use]
    pub fn at_most(mut self, strikes_max: u64) -> Self {
        self.strikes_max = strikes_max;
        self
    }

    fn matches(&self, method: &str, path: &str) -> bool {
        (self.methods.is_empty() || self.methods.contains(&method)) && path.contains(self.path_contains)
    }
}

/// Rules in order, each with its own stream of chance. Decisions depend on the seed and on how many requests a rule
/// has matched, not on the clock; what a client sends when is its own affair, so playing a seed again gives the same
/// strikes at the same ordinals.
#[derive(Debug)]
pub struct FaultPlan {
    rules: Vec<(FaultRule, Seed, u64, u64)>,
}

impl FaultPlan {
    /// No faults: the proxy only passes on.
    pub fn none() -> Self {
        Self { rules: Vec::new() }
    }

    /// These rules, the first that strikes wins.
    pub fn new(seed: &Seed, rules: Vec<FaultRule>) -> Self {
        let with_stream = |(index, rule)| (rule, seed.fork(index as u64 + 1), 0, 0);
        Self { rules: rules.into_iter().enumerate().map(with_stream).collect() }
    }

    /// The weather of a bad day: everything, rarely enough that a client that retries gets through.
    pub fn bad_day(seed: &Seed) -> Self {
        Self::new(
            seed,
            vec![
                FaultRule::any(Fault::Busy, 25),
                FaultRule::any(Fault::ResetBefore, 15),
                FaultRule::any(Fault::BodyCut, 15).on(&["GET"]),
                // Lost answers to conditional creates are the hardest case, so they come more often than the rest.
                FaultRule::any(Fault::AnswerLost, 60).on(&["PUT"]).under("_versions"),
                FaultRule::any(Fault::FailedAfter, 60).on(&["PUT"]).under("_versions"),
                FaultRule::any(Fault::AnswerLost, 10).on(&["PUT", "POST"]),
                FaultRule::any(Fault::Delay(Duration::from_millis(30)), 50),
            ],
        )
    }

    /// The fault that this request meets.
    pub(crate) fn decide(&mut self, method: &str, path: &str) -> Option<Fault> {
        for (rule, seed, matched, strikes) in &mut self.rules {
            if !rule.matches(method, path) {
                continue;
            }
            *matched += 1;
            let drawn = seed.below(1000) < u64::from(rule.per_mille);
            if drawn && *matched > rule.skip_first && *strikes < rule.strikes_max {
                *strikes += 1;
                return Some(rule.fault);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, FaultPlan, FaultRule};
    use crate::Seed;

    fn strikes(seed: u64) -> Vec<usize> {
        let mut plan =
            FaultPlan::new(&Seed::new(seed), vec![FaultRule::any(Fault::Busy, 100).on(&["PUT"]).at_most(20)]);
        (0..2000).filter(|_| plan.decide("PUT", "/a").is_some()).collect()
    }

    #[test]
    fn a_seed_strikes_the_same_requests_again_and_stops_at_its_limit() {
        assert_eq!(strikes(5), strikes(5));
        assert_ne!(strikes(5), strikes(6));
        assert_eq!(strikes(5).len(), 20);
    }

    #[test]
    fn a_rule_touches_only_what_it_names() {
        let rule = FaultRule::any(Fault::ResetBefore, 1000).on(&["PUT"]).under("_versions").after(1).at_most(1);
        let mut plan = FaultPlan::new(&Seed::new(1), vec![rule]);
        assert_eq!(plan.decide("GET", "/t/_versions/1.manifest"), None);
        assert_eq!(plan.decide("PUT", "/t/data/1.lance"), None);
        assert_eq!(plan.decide("PUT", "/t/_versions/1.manifest"), None);
        assert_eq!(plan.decide("PUT", "/t/_versions/2.manifest"), Some(Fault::ResetBefore));
        assert_eq!(plan.decide("PUT", "/t/_versions/3.manifest"), None);
    }
}
