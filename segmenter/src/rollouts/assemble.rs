//! Steps put together to whole segments, and segments to a batch of the interchange schema.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Builder, Float64Array, Int8Builder, Int32Array, Int32Builder, LargeBinaryArray,
    LargeListBuilder, LargeStringArray, RecordBatch, StringArray, StringBuilder, TimestampMicrosecondArray,
};
use arrow::error::ArrowError;
use dressage_schemas::spans::MaskSpans;
use dressage_schemas::tables::rollout;
use dressage_schemas::words::CONTEXT_VERSION;
use serde_json::{Map, Value};

use super::load::{Contents, Head, Parts, Segment, Step};
use crate::error::{Error, Result};

/// One row: a segment, or a trajectory that has none.
#[derive(Debug)]
pub(super) struct Row<'a> {
    head: &'a Head,
    segment_index: Option<i32>,
    segment: Option<&'a Segment>,
    tokens: Option<Tokens>,
    experts: Option<dressage_codec::Routes>,
    messages: Option<String>,
    tools: Option<String>,
    extra_info: Option<String>,
}

/// Token-aligned columns of a segment.
#[derive(Debug, Default, PartialEq)]
struct Tokens {
    ids: Vec<i32>,
    mask: Vec<bool>,
    logprobs: Option<Vec<f32>>,
    versions: Option<Vec<Option<String>>>,
}

/// All segments of these trajectories, in order.
pub(super) fn segments<'a>(
    heads: &'a [Head],
    parts: &'a Parts,
    contents: &Contents,
    plain: bool,
) -> Result<Vec<Row<'a>>> {
    let mut rows = Vec::new();
    for head in heads {
        let mut empty = true;
        for ((_, index), segment) in parts.segments.range((head.key, i64::MIN)..=(head.key, i64::MAX)) {
            empty = false;
            rows.push(row(head, *index, segment, parts, (contents, plain))?);
        }
        if empty {
            rows.push(Row {
                head,
                segment_index: None,
                segment: None,
                tokens: None,
                experts: None,
                messages: None,
                tools: None,
                extra_info: None,
            });
        }
    }
    Ok(rows)
}

fn row<'a>(
    head: &'a Head,
    index: i64,
    segment: &'a Segment,
    parts: &Parts,
    (contents, plain): (&Contents, bool),
) -> Result<Row<'a>> {
    let broken = |problem: String| Error::Assemble { trajectory_id: head.trajectory_id.clone(), problem };
    let mut steps = Vec::with_capacity(segment.steps.len());
    for step_index in &segment.steps {
        let step = parts.steps.get(&(head.key, *step_index));
        steps.push(step.ok_or_else(|| broken(format!("segment {index} names step {step_index}, which is missing")))?);
    }
    let tokens = tokens(&steps).map_err(|problem| broken(format!("segment {index}: {problem}")))?;
    let experts = match &tokens {
        Some(tokens) => {
            experts(&steps, tokens.ids.len()).map_err(|problem| broken(format!("segment {index}: {problem}")))?
        }
        None => None,
    };
    let messages: Vec<Value> = steps
        .iter()
        .flat_map(|step| &step.messages)
        .map(|m| if plain { m.plain() } else { m.to_json(contents) })
        .collect();
    let tools = steps.iter().rev().find_map(|step| step.tools.as_ref()).and_then(|hash| contents.tools.get(hash));
    Ok(Row {
        head,
        segment_index: i32::try_from(index).ok(),
        segment: Some(segment),
        tokens,
        experts,
        messages: (!messages.is_empty()).then(|| Value::Array(messages).to_string()),
        tools: tools.cloned(),
        extra_info: extra(&steps),
    })
}

/// The token-aligned columns; none where no step has tokens.
fn tokens(steps: &[&Step]) -> Result<Option<Tokens>, String> {
    if steps.iter().all(|step| step.token_ids.is_none()) {
        return Ok(None);
    }
    let with_logprobs = steps.iter().any(|step| step.logprobs.is_some());
    let with_versions = steps.iter().any(|step| step.version_spans.is_some() || step.weight_version.is_some());
    let mut all = Tokens::default();
    let mut logprobs = Vec::new();
    let mut versions = Vec::new();
    for step in steps {
        let Some(ids) = &step.token_ids else {
            if step.n_tokens == 0 {
                continue;
            }
            return Err("a step counts tokens but has no ids".to_owned());
        };
        let mask = MaskSpans::from_stored(step.mask_spans.clone()).ok_or("a step's mask has negative lengths")?;
        if mask.n_tokens() != ids.len() {
            return Err(format!("a step has {} token ids and a mask of {}", ids.len(), mask.n_tokens()));
        }
        all.mask.extend(mask.iter());
        match &step.logprobs {
            Some(values) if values.len() == ids.len() => logprobs.extend_from_slice(values),
            Some(values) => return Err(format!("a step has {} token ids and {} log-probs", ids.len(), values.len())),
            None => logprobs.extend(mask.iter().map(|trained| if trained { f32::NAN } else { 0.0 })),
        }
        if with_versions {
            step_versions(step, &mask, &mut versions)?;
        }
        all.ids.extend_from_slice(ids);
    }
    all.logprobs = with_logprobs.then_some(logprobs);
    all.versions = with_versions.then_some(versions);
    Ok(Some(all))
}

/// The version of each of a step's tokens: as recorded, else the step's own on what it generated.
fn step_versions(step: &Step, mask: &MaskSpans, versions: &mut Vec<Option<String>>) -> Result<(), String> {
    let Some(spans) = &step.version_spans else {
        versions.extend(mask.iter().map(|trained| match trained {
            true => step.weight_version.clone(),
            false => Some(CONTEXT_VERSION.to_owned()),
        }));
        return Ok(());
    };
    let before = versions.len();
    for (version, n) in spans {
        versions.extend(std::iter::repeat_n(Some(version.clone()), usize::try_from(*n).unwrap_or(0)));
    }
    let counted = versions.len() - before;
    if counted != mask.n_tokens() {
        return Err(format!("a step has {} tokens and {counted} versions", mask.n_tokens()));
    }
    Ok(())
}

/// Router choices of the whole segment: one row a token but the last. None unless every step has them.
fn experts(steps: &[&Step], n_tokens: usize) -> Result<Option<dressage_codec::Routes>, String> {
    let pieces: Option<Vec<&[u8]>> =
        steps.iter().filter(|step| step.n_tokens > 0).map(|step| step.routed_experts.as_deref()).collect();
    let Some(pieces) = pieces.filter(|pieces| !pieces.is_empty()) else { return Ok(None) };
    let routes = dressage_codec::concat(&pieces).and_then(|whole| dressage_codec::decode_all(&whole));
    let routes = routes.map_err(|e| format!("its routed experts do not decode: {e}"))?;
    if routes.rows != n_tokens.saturating_sub(1) && routes.rows != n_tokens {
        return Err(format!("it has {n_tokens} tokens and routed experts for {}", routes.rows));
    }
    Ok(Some(routes))
}

/// Keys without a column: those of the only step, else a list with one entry a step.
fn extra(steps: &[&Step]) -> Option<String> {
    let own: Vec<Option<&String>> = steps.iter().map(|step| step.extra.as_ref()).collect();
    match own.as_slice() {
        [] => None,
        [one] => one.cloned(),
        many if many.iter().all(Option::is_none) => None,
        many => {
            let values = many
                .iter()
                .map(|text| text.and_then(|t| serde_json::from_str(t).ok()).unwrap_or(Value::Null))
                .collect();
            let mut map = Map::new();
            map.insert("steps".to_owned(), Value::Array(values));
            Some(Value::Object(map).to_string())
        }
    }
}

/// Rows to a batch under [`rollout::schema`].
pub(super) fn batch(rows: &[Row<'_>]) -> Result<RecordBatch, ArrowError> {
    let maybe = |get: fn(&Head) -> Option<&str>| -> ArrayRef {
        Arc::new(StringArray::from_iter(rows.iter().map(|r| get(r.head))))
    };
    let long = |texts: Vec<Option<&str>>| -> ArrayRef { Arc::new(LargeStringArray::from(texts)) };
    let created = TimestampMicrosecondArray::from_iter(rows.iter().map(|r| r.head.created_at)).with_timezone("UTC");
    let segment_text = |get: fn(&Segment) -> Option<&str>| -> ArrayRef {
        Arc::new(StringArray::from_iter(rows.iter().map(|r| r.segment.and_then(get))))
    };
    let mut reasons = LargeListBuilder::new(StringBuilder::new());
    let mut ids = LargeListBuilder::new(Int32Builder::new());
    let mut mask = LargeListBuilder::new(Int8Builder::new());
    let mut logprobs = LargeListBuilder::new(Float32Builder::new());
    let mut versions = LargeListBuilder::new(StringBuilder::new());
    for row in rows {
        if let Some(segment) = row.segment {
            segment.reasons.iter().for_each(|reason| reasons.values().append_value(reason));
        }
        reasons.append(row.segment.is_some());
        if let Some(tokens) = &row.tokens {
            ids.values().append_slice(&tokens.ids);
            tokens.mask.iter().for_each(|trained| mask.values().append_value(i8::from(*trained)));
            logprobs.values().append_slice(tokens.logprobs.as_deref().unwrap_or_default());
            for version in tokens.versions.iter().flatten() {
                versions.values().append_option(version.as_deref());
            }
        }
        let tokens = row.tokens.as_ref();
        ids.append(tokens.is_some());
        mask.append(tokens.is_some());
        logprobs.append(tokens.is_some_and(|t| t.logprobs.is_some()));
        versions.append(tokens.is_some_and(|t| t.versions.is_some()));
    }
    let expert_size = |get: fn(&dressage_codec::Routes) -> usize| -> ArrayRef {
        let sizes = rows.iter().map(|r| r.experts.as_ref().and_then(|e| i32::try_from(get(e)).ok()));
        Arc::new(Int32Array::from_iter(sizes))
    };
    RecordBatch::try_new(
        rollout::schema(),
        vec![
            maybe(|h| Some(&h.trajectory_id)),
            maybe(|h| Some(&h.instance_id)),
            maybe(|h| h.group_id.as_deref()),
            maybe(|h| h.run_id.as_deref()),
            maybe(|h| h.parent_trajectory_id.as_deref()),
            maybe(|h| h.status.as_deref()),
            Arc::new(Float64Array::from_iter(rows.iter().map(|r| r.head.reward))),
            maybe(|h| h.model.as_deref()),
            maybe(|h| h.agent.as_deref()),
            Arc::new(created),
            maybe(|h| h.labels.as_deref()),
            Arc::new(Int32Array::from_iter(rows.iter().map(|r| r.segment_index))),
            Arc::new(reasons.finish()),
            segment_text(|s| s.finish_reason.as_deref()),
            Arc::new(BooleanArray::from_iter(rows.iter().map(|r| r.segment.map(|s| s.trainable)))),
            segment_text(|s| s.weight_version.as_deref()),
            Arc::new(ids.finish()),
            Arc::new(mask.finish()),
            Arc::new(logprobs.finish()),
            Arc::new(versions.finish()),
            Arc::new(LargeBinaryArray::from_iter(rows.iter().map(|r| r.experts.as_ref().map(|e| e.bytes.as_slice())))),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.experts.as_ref().map(|e| e.dtype.name())))),
            expert_size(|e| e.layers),
            expert_size(|e| e.topk),
            long(rows.iter().map(|r| r.messages.as_deref()).collect()),
            long(rows.iter().map(|r| r.tools.as_deref()).collect()),
            long(rows.iter().map(|r| r.extra_info.as_deref()).collect()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(ids: &[i32], spans: &[i32], version: &str) -> Step {
        Step {
            n_tokens: ids.len() as i64,
            mask_spans: spans.to_vec(),
            weight_version: Some(version.to_owned()),
            token_ids: Some(ids.to_vec()),
            logprobs: Some(ids.iter().map(|id| -(*id as f32)).collect()),
            ..Step::default()
        }
    }

    #[test]
    fn deltas_become_one_sequence() {
        let (first, second) = (step(&[1, 2, 3], &[2, 1], "7"), step(&[4, 5], &[1, 1], "8"));
        let all = tokens(&[&first, &second]).expect("fits").expect("tokens");
        assert_eq!(all.ids, vec![1, 2, 3, 4, 5]);
        assert_eq!(all.mask, vec![false, false, true, false, true]);
        assert_eq!(all.logprobs.expect("there"), vec![-1.0, -2.0, -3.0, -4.0, -5.0]);
        let versions: Vec<_> = all.versions.expect("there").into_iter().flatten().collect();
        assert_eq!(versions, vec!["-1", "-1", "7", "-1", "8"]);
    }

    #[test]
    fn parts_of_different_lengths_are_an_error_and_not_padded() {
        let mut short = step(&[1, 2, 3], &[2, 1], "7");
        short.logprobs = Some(vec![0.0]);
        assert!(tokens(&[&short]).unwrap_err().contains("3 token ids and 1 log-probs"));
        let wrong_mask = step(&[1, 2, 3], &[2], "7");
        assert!(tokens(&[&wrong_mask]).unwrap_err().contains("mask of 2"));
    }

    #[test]
    fn messages_alone_give_a_row_without_tokens() {
        let step = Step::default();
        assert_eq!(tokens(&[&step]), Ok(None));
    }
}
