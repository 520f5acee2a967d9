//! One sample: the scalars that follow from its steps, checked against what the plan says.

use dressage_schemas::spans::{MaskSpans, VersionSpans};
use dressage_schemas::words::CONTEXT_VERSION;

use super::plan::PlacedSample;
use super::rows::{StepRef, WindowRows};

/// A sample put together, but for its payload, which still lies in its steps.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    pub(super) placed: &'a PlacedSample,
    pub(super) steps: Vec<StepRef<'a>>,
    /// Tokens after the cap.
    pub(super) n_tokens: usize,
    /// Tokens before the first trained one, of the mask before version masking.
    pub(super) response_start: usize,
    /// The training mask.
    pub(super) mask: MaskSpans,
    /// Versions of its tokens; none where no step names one.
    pub(super) versions: Option<VersionSpans>,
    pub(super) truncated: bool,
}

impl<'a> Sample<'a> {
    /// From the steps that the plan names.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub(super) fn of(
        placed: &'a PlacedSample,
        rows: &'a WindowRows,
        max_segment_tokens: Option<usize>,
    ) -> Result<Self, String> {
        let step = |address: &u64| rows.step(*address).ok_or_else(|| format!("step row {address:#x} was not read"));
        let steps = placed.step_rows.iter().map(step).collect::<Result<Vec<_>, _>>()?;
        let mut whole = MaskSpans::default();
        for step in &steps {
            if step.trajectory_key() != placed.trajectory_key {
                let found = step.trajectory_key();
                return Err(format!("a step row of the plan belongs to the trajectory with key {found:016x}"));
            }
            whole.extend(step.mask_lengths(), step.trainable());
        }
        let mask = match max_segment_tokens {
            Some(n_tokens_max) => whole.capped(n_tokens_max),
            None => whole,
        };
        let n_tokens = mask.n_tokens();
        let versions = versions(&steps, n_tokens);
        let response_start = mask.response_start();
        let mask = match &versions {
            Some(versions) if steps.iter().any(|step| step.masks_older_versions()) => mask.of_last_version(versions),
            _ => mask,
        };
        let sample = Self {
            placed,
            n_tokens,
            response_start,
            mask,
            versions,
            truncated: steps.last().and_then(|step| step.finish_reason()) == Some("length"),
            steps,
        };
        sample.agrees_with_the_plan()?;
        Ok(sample)
    }

    fn agrees_with_the_plan(&self) -> Result<(), String> {
        let (tokens, trained) = (self.n_tokens as i64, self.mask.n_trained() as i64);
        let planned = (self.placed.n_tokens, self.placed.mask_sum);
        if (tokens, trained) != planned {
            return Err(format!(
                "the plan says {} tokens, {} of them trained; its steps have {tokens} and {trained}",
                planned.0, planned.1
            ));
        }
        Ok(())
    }
}

/// The versions of the first `n_tokens` tokens. Where a step does not say them one by one, its own version is that of
/// what it generated, and its context has none.
fn versions(steps: &[StepRef<'_>], n_tokens: usize) -> Option<VersionSpans> {
    let mut all = VersionSpans::default();
    let mut named = false;
    let mut left = n_tokens;
    for step in steps {
        let mut push = |version: &str, n: i32| {
            let n = usize::try_from(n).unwrap_or(0).min(left);
            all.push(version, n);
            left -= n;
        };
        match step.version_spans() {
            Some(recorded) => {
                named = true;
                recorded.0.iter().for_each(|(version, n)| push(version, *n));
            }
            None => {
                named |= step.weight_version().is_some();
                for (i, n) in step.mask_lengths().iter().enumerate() {
                    let generated = i % 2 == 1;
                    push(if generated { step.weight_version().unwrap_or_default() } else { CONTEXT_VERSION }, *n);
                }
            }
        }
    }
    named.then_some(all)
}
