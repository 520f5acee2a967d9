//! What a rollout must be to be let in. Whatever contradicts itself is refused with the numbers that show it; what is
//! merely odd is let in with a flag.

use arrow::buffer::ScalarBuffer;
use dressage_schemas::words::{Status, flag};

use super::Refusal;
use crate::rollout::{Rollout, RolloutStep};
use crate::rule;

/// Larger ids than any vocabulary has.
const TOKEN_ID_MAX: i32 = (1 << 24) - 1;
/// Longer ids are a mistake, and every row would carry them.
const ID_BYTES_MAX: usize = 4_096;
/// Steps of one trajectory are numbered in 32 bits; this many is already a mistake.
const STEPS_MAX: usize = 10_000_000;

/// Checks a rollout and sets the flags that follow from its numbers.
pub(crate) fn check(rollout: &mut Rollout) -> Result<(), Refusal> {
    check_id("trajectory_id", Some(&rollout.trajectory_id))?;
    check_id("run_id", rollout.run_id.as_deref())?;
    check_id("instance_id", rollout.instance_id.as_deref())?;
    check_id("group_id", rollout.group_id.as_deref())?;
    check_id("parent_trajectory_id", rollout.parent_trajectory_id.as_deref())?;
    let dead = matches!(rollout.status, Status::Aborted | Status::Failed);
    if rollout.steps.is_empty() && !dead {
        let reason = format!("a {} trajectory has no step and no segment", rollout.status.as_str());
        return Err(Refusal::new(rule::EMPTY_TRAJECTORY, reason));
    }
    if rollout.steps.len() > STEPS_MAX {
        return Err(Refusal::new(rule::TOO_LARGE, format!("{} steps, at most {STEPS_MAX}", rollout.steps.len())));
    }
    check_segments(&rollout.steps)?;
    for (index, step) in rollout.steps.iter_mut().enumerate() {
        check_step(index, step)?;
    }
    Ok(())
}

fn check_id(name: &str, id: Option<&str>) -> Result<(), Refusal> {
    match id {
        Some("") => Err(Refusal::new(rule::BAD_ID, format!("{name} is empty"))),
        Some(id) if id.len() > ID_BYTES_MAX => {
            Err(Refusal::new(rule::BAD_ID, format!("{name} has {} bytes, at most {ID_BYTES_MAX}", id.len())))
        }
        _ => Ok(()),
    }
}

/// Given segments are numbered 0..N-1, in any order, and either all steps have a number or none.
fn check_segments(steps: &[RolloutStep]) -> Result<(), Refusal> {
    let given = steps.iter().filter(|s| s.segment_index.is_some()).count();
    if given == 0 {
        return Ok(());
    }
    let bad = |reason: String| Err(Refusal::new(rule::SEGMENT_INDICES, reason));
    if given != steps.len() {
        return bad(format!("{given} of {} segments have a segment_index", steps.len()));
    }
    let mut indices: Vec<i32> = steps.iter().filter_map(|s| s.segment_index).collect();
    indices.sort_unstable();
    indices.dedup();
    let count = indices.len();
    if indices.first() != Some(&0) || indices.last().copied() != i32::try_from(count - 1).ok() {
        return bad(format!("the {count} segment indices are not exactly 0 to {}", count - 1));
    }
    Ok(())
}

fn check_step(index: usize, step: &mut RolloutStep) -> Result<(), Refusal> {
    let refuse = |rule, reason: String| Err(Refusal::new(rule, format!("step {index}: {reason}")));
    if step.base_step.is_some_and(|base| usize::try_from(base).map_or(true, |base| base >= index)) {
        return refuse(
            rule::BAD_BASE_STEP,
            format!("extends step {}, which is not before it", step.base_step.unwrap_or(-1)),
        );
    }
    if step.n_context_messages > step.messages.len() {
        let (context, all) = (step.n_context_messages, step.messages.len());
        return refuse(rule::WRONG_TYPE, format!("{context} of {all} messages are context"));
    }
    let Some(ids) = &step.token_ids else {
        let orphan = step.logprobs.is_some() || step.versions.is_some() || step.routed_experts.is_some();
        if orphan || step.mask.n_tokens() > 0 || step.n_output_tokens > 0 {
            return refuse(
                rule::MISSING_FIELD,
                "has a mask, log-probs, versions or routed experts and no token ids".into(),
            );
        }
        return Ok(());
    };
    let n = ids.len();
    if let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| !(0..=TOKEN_ID_MAX).contains(*id)) {
        return refuse(rule::TOKEN_ID_RANGE, format!("token id {id} at position {at} is not in 0..={TOKEN_ID_MAX}"));
    }
    let masked = step.mask.n_tokens();
    if masked != n {
        return refuse(
            rule::MASK_LENGTH_MISMATCH,
            format!("the loss mask has {masked} entries and there are {n} token ids"),
        );
    }
    if step.n_output_tokens > n {
        let output = step.n_output_tokens;
        return refuse(rule::TOKEN_COUNT_MISMATCH, format!("{output} output tokens and only {n} token ids"));
    }
    if let Some(logprobs) = &step.logprobs
        && logprobs.len() != n
    {
        let given = logprobs.len();
        let reason = format!("{given} log-probs and {n} token ids; they are not shifted or padded to fit");
        return refuse(rule::LOGPROBS_LENGTH_MISMATCH, reason);
    }
    if let Some(versions) = &step.versions
        && versions.n_tokens() != n
    {
        let given = versions.n_tokens();
        return refuse(rule::VERSIONS_LENGTH_MISMATCH, format!("{given} versions and {n} token ids"));
    }
    check_experts(index, step, n)?;
    settle_logprobs(step);
    if step.trainable && n > 0 && step.mask.n_trained() == 0 {
        step.flag(flag::NO_TRAINED_TOKENS);
    }
    Ok(())
}

/// A segment's first step has a row for each token but the last; a step that extends another also has the row of the
/// token before its first one, so as many rows as tokens (semantics 8.3).
fn check_experts(index: usize, step: &RolloutStep, n: usize) -> Result<(), Refusal> {
    let Some(experts) = &step.routed_experts else { return Ok(()) };
    let refuse = |rule, reason: String| Err(Refusal::new(rule, format!("step {index}: {reason}")));
    let starts = step.boundary || index == 0;
    let expected = if starts { n.saturating_sub(1) } else { n };
    if experts.rows != expected {
        let (rows, kind) = (experts.rows, if starts { "starts a segment" } else { "extends a step" });
        let reason = format!("{rows} rows of routed experts; a step of {n} tokens that {kind} has {expected}");
        return refuse(rule::ROUTED_EXPERTS_ROWS, reason);
    }
    let bytes = experts.byte_length();
    let row_bytes = bytes.checked_div(experts.rows).unwrap_or(0);
    let width = experts.dtype.width();
    let shape = (experts.layers as usize) * (experts.top_k as usize) * width;
    let fits = if shape == 0 { row_bytes.is_multiple_of(width) } else { row_bytes == shape };
    if !bytes.is_multiple_of(experts.rows.max(1)) || !fits || (experts.rows > 0 && row_bytes == 0) {
        let (rows, layers, top_k) = (experts.rows, experts.layers, experts.top_k);
        let reason = format!(
            "{bytes} bytes of routed experts are not {rows} rows × {layers} layers × top-{top_k} of {}",
            experts.dtype.as_str()
        );
        return refuse(rule::ROUTED_EXPERTS_SHAPE, reason);
    }
    Ok(())
}

/// What is not finite becomes NaN; a trained token without a log-probability makes the step untrainable.
fn settle_logprobs(step: &mut RolloutStep) {
    let Some(logprobs) = &mut step.logprobs else { return };
    if logprobs.iter().all(|p| p.is_finite()) {
        return;
    }
    if logprobs.iter().any(|p| p.is_infinite()) {
        *logprobs = logprobs.iter().map(|p| if p.is_finite() { *p } else { f32::NAN }).collect::<ScalarBuffer<f32>>();
    }
    step.flag(flag::NONFINITE_LOGPROB);
    step.trainable = false;
}

#[cfg(test)]
mod tests {
    use dressage_schemas::spans::{MaskSpans, VersionSpans};

    use super::*;
    use crate::rollout::{ExpertDtype, RoutedExperts};

    fn step(tokens: usize) -> RolloutStep {
        RolloutStep {
            token_ids: Some((0..tokens as i32).collect()),
            mask: MaskSpans::context_then_output(1, tokens - 1),
            n_output_tokens: tokens - 1,
            logprobs: Some(vec![-0.5; tokens].into()),
            ..RolloutStep::default()
        }
    }

    fn refused(change: impl FnOnce(&mut RolloutStep)) -> Refusal {
        let mut rollout = Rollout::new("t");
        let mut step = step(4);
        change(&mut step);
        rollout.steps.push(step);
        check(&mut rollout).unwrap_err()
    }

    #[test]
    fn lengths_that_differ_are_refused_with_both_numbers() {
        let mask = refused(|s| s.mask = MaskSpans::context_then_output(1, 2));
        assert_eq!(mask.rule, rule::MASK_LENGTH_MISMATCH);
        assert!(mask.reason.contains('3') && mask.reason.contains('4'), "{}", mask.reason);
        let logprobs = refused(|s| s.logprobs = Some(vec![0.0; 5].into()));
        assert_eq!(logprobs.rule, rule::LOGPROBS_LENGTH_MISMATCH);
        assert!(logprobs.reason.contains('5') && logprobs.reason.contains('4'));
        let versions = refused(|s| s.versions = Some(VersionSpans(vec![("1".into(), 2)])));
        assert_eq!(versions.rule, rule::VERSIONS_LENGTH_MISMATCH);
    }

    #[test]
    fn impossible_token_ids_are_refused() {
        assert_eq!(refused(|s| s.token_ids = Some(vec![1, -1, 2, 3].into())).rule, rule::TOKEN_ID_RANGE);
        assert_eq!(refused(|s| s.token_ids = Some(vec![1, i32::MAX, 2, 3].into())).rule, rule::TOKEN_ID_RANGE);
    }

    #[test]
    fn rows_of_routed_experts_must_fit_the_tokens() {
        let experts = |rows: usize, bytes: usize| {
            let chunks = vec![vec![0_u8; bytes].into()];
            Some(RoutedExperts { chunks, dtype: ExpertDtype::Uint8, layers: 2, top_k: 2, rows })
        };
        assert_eq!(refused(|s| s.routed_experts = experts(4, 16)).rule, rule::ROUTED_EXPERTS_ROWS);
        assert_eq!(refused(|s| s.routed_experts = experts(3, 11)).rule, rule::ROUTED_EXPERTS_SHAPE);
        let mut rollout = Rollout::new("t");
        rollout.steps.push(RolloutStep { routed_experts: experts(3, 12), boundary: true, ..step(4) });
        rollout.steps.push(RolloutStep { routed_experts: experts(4, 16), ..step(4) });
        assert_eq!(check(&mut rollout), Ok(()));
    }

    #[test]
    fn log_probs_that_are_not_finite_are_kept_as_nan_and_not_trained() {
        let mut rollout = Rollout::new("t");
        let logprobs = vec![0.0, f32::NEG_INFINITY, f32::NAN, -0.5];
        rollout.steps.push(RolloutStep { logprobs: Some(logprobs.into()), ..step(4) });
        check(&mut rollout).unwrap();
        let step = &rollout.steps[0];
        assert!(!step.trainable && step.flags == [flag::NONFINITE_LOGPROB]);
        let stored = step.logprobs.as_ref().unwrap();
        assert!(stored[1].is_nan() && stored[2].is_nan() && stored[3] == -0.5);
    }

    #[test]
    fn a_finished_trajectory_must_hold_something_and_an_aborted_one_need_not() {
        assert_eq!(check(&mut Rollout::new("t")).unwrap_err().rule, rule::EMPTY_TRAJECTORY);
        let mut aborted = Rollout { status: Status::Aborted, ..Rollout::new("t") };
        assert_eq!(check(&mut aborted), Ok(()));
    }

    #[test]
    fn given_segments_are_numbered_without_gaps() {
        let mut rollout = Rollout::new("t");
        for index in [1, 0, 3] {
            rollout.steps.push(RolloutStep { segment_index: Some(index), ..step(4) });
        }
        assert_eq!(check(&mut rollout).unwrap_err().rule, rule::SEGMENT_INDICES);
    }
}
