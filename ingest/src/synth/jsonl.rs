//! The dressage format: one JSON object a trajectory and line.

use std::io::Write;

use super::maker::{Maker, SynthSegment, SynthTrajectory};
use super::{SynthReport, write_failed};
use crate::error::Result;

/// Writes every trajectory.
pub(super) fn write(maker: &Maker, out: &mut impl Write) -> Result<SynthReport> {
    let mut report = SynthReport::default();
    let mut line = Vec::new();
    for index in 0..maker.settings().trajectories {
        let trajectory = maker.trajectory(index);
        line.clear();
        append_trajectory(maker, &trajectory, &mut line).and_then(|()| out.write_all(&line)).map_err(write_failed)?;
        report.count(&trajectory);
    }
    Ok(report)
}

fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

fn append_trajectory(maker: &Maker, trajectory: &SynthTrajectory, line: &mut Vec<u8>) -> std::io::Result<()> {
    let run_id = text(&maker.settings().run_id);
    write!(
        line,
        r#"{{"trajectory_id":{},"instance_id":{},"run_id":{run_id},"status":"{}","reward":"#,
        text(&trajectory.trajectory_id),
        text(&trajectory.instance_id),
        trajectory.status,
    )?;
    match trajectory.reward {
        Some(reward) => write!(line, "{reward:?}")?,
        None => line.extend_from_slice(b"null"),
    }
    write!(line, r#","created_at":{},"segments":["#, trajectory.created_at as f64 / 1e6)?;
    for (index, segment) in trajectory.segments.iter().enumerate() {
        if index > 0 {
            line.push(b',');
        }
        append_segment(maker, index, segment, line)?;
    }
    line.extend_from_slice(b"]}\n");
    Ok(())
}

fn append_list<T: std::fmt::Display>(key: &str, values: &[T], line: &mut Vec<u8>) -> std::io::Result<()> {
    write!(line, r#","{key}":["#)?;
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            line.push(b',');
        }
        write!(line, "{value}")?;
    }
    line.push(b']');
    Ok(())
}

fn append_segment(maker: &Maker, index: usize, segment: &SynthSegment, line: &mut Vec<u8>) -> std::io::Result<()> {
    write!(line, r#"{{"segment_index":{index}"#)?;
    append_list("tokens", &segment.tokens, line)?;
    append_list("full_loss_mask", &segment.mask, line)?;
    append_list("full_logprobs", &segment.logprobs, line)?;
    if !segment.versions.is_empty() {
        let quoted: Vec<String> = segment.versions.iter().map(|version| text(version)).collect();
        append_list("full_versions", &quoted, line)?;
    }
    if let Some(dtype) = maker.experts_dtype().filter(|_| !segment.routed_experts.is_empty()) {
        line.extend_from_slice(br#","routed_experts_chunks":[{"data":""#);
        append_base64(&segment.routed_experts, line);
        let (rows, layers, topk) = (segment.tokens.len() - 1, maker.settings().layers, maker.settings().topk);
        write!(line, r#"","row_count":{rows},"dtype":"{}","layers":{layers},"topk":{topk}}}]"#, dtype.name())?;
    }
    if let Some(messages) = &segment.messages {
        write!(line, r#","messages":{messages}"#)?;
    }
    write!(line, r#","finish_reason":"{}""#, segment.finish_reason)?;
    if maker.experts_dtype().is_some() {
        let (layers, topk) = (maker.settings().layers, maker.settings().topk);
        write!(line, r#","extra_info":{{"num_layers":{layers},"moe_router_topk":{topk}}}"#)?;
    }
    line.push(b'}');
    Ok(())
}

fn append_base64(bytes: &[u8], line: &mut Vec<u8>) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    line.reserve(bytes.len().div_ceil(3) * 4);
    let digits = |word: u32| [18, 12, 6, 0].map(|shift| ALPHABET[(word >> shift & 63) as usize]);
    let (threes, rest) = bytes.as_chunks::<3>();
    for [a, b, c] in threes {
        line.extend_from_slice(&digits(u32::from(*a) << 16 | u32::from(*b) << 8 | u32::from(*c)));
    }
    match rest {
        [a] => {
            let [w, x, _, _] = digits(u32::from(*a) << 16);
            line.extend_from_slice(&[w, x, b'=', b'=']);
        }
        [a, b] => {
            let [w, x, y, _] = digits(u32::from(*a) << 16 | u32::from(*b) << 8);
            line.extend_from_slice(&[w, x, y, b'=']);
        }
        _ => {}
    }
}
