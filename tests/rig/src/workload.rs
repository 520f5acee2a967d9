//! Rollouts whose every number is known: a file in the `dressage` format, and what a store must hold after reading it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::Seed;

/// What a store must say of one trajectory. Sums of ids stand for the tokens themselves: a lost, doubled or foreign
/// step changes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Segments, each one step of the stored table.
    pub n_segments: i64,
    /// Tokens over all segments.
    pub n_tokens: i64,
    /// Tokens that receive gradient.
    pub n_trained_tokens: i64,
    /// Messages over all segments.
    pub n_messages: i64,
    /// Sum of all token ids.
    pub token_sum: i64,
    /// The reward in hundredths, so that it can be compared exactly.
    pub reward_hundredths: i64,
}

/// A set of trajectories.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The file's lines, one trajectory each.
    lines: Vec<String>,
    /// What each of them is, by `trajectory_id`.
    pub expected: BTreeMap<String, Expected>,
}

impl Workload {
    /// `n_trajectories` of about `n_tokens` tokens each, in one to four segments, named `PREFIX-NUMBER`.
    ///
    /// # Errors
    /// Never in practice: writing to a string.
    pub fn make(seed: &Seed, prefix: &str, n_trajectories: usize, n_tokens: usize) -> Result<Self> {
        let mut lines = Vec::with_capacity(n_trajectories);
        let mut expected = BTreeMap::new();
        for number in 0..n_trajectories {
            let trajectory_id = format!("{prefix}-{number}");
            let (line, what) = trajectory(&mut seed.fork(number as u64 + 1), &trajectory_id, number, n_tokens)?;
            lines.push(line);
            expected.insert(trajectory_id, what);
        }
        Ok(Self { lines, expected })
    }

    /// Writes the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let mut out = BufWriter::new(std::fs::File::create(file)?);
        for line in &self.lines {
            out.write_all(line.as_bytes())?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(())
    }

    /// Both together, for files that are read into one store.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.lines.extend(other.lines);
        self.expected.extend(other.expected);
        self
    }
}

fn trajectory(seed: &mut Seed, id: &str, number: usize, n_tokens: usize) -> Result<(String, Expected)> {
    let n_segments = 1 + seed.below(4) as usize;
    let reward_hundredths = seed.below(200) as i64 - 100;
    let mut what = Expected {
        n_segments: n_segments as i64,
        n_tokens: 0,
        n_trained_tokens: 0,
        n_messages: 0,
        token_sum: 0,
        reward_hundredths,
    };
    let mut segments = String::new();
    for index in 0..n_segments {
        let n = (n_tokens / n_segments).max(2) + seed.below(8) as usize;
        let n_context = 1 + seed.below(n as u64 / 2) as usize;
        let tokens: Vec<i64> = (0..n).map(|_| seed.below(151_000) as i64).collect();
        let mask: Vec<u8> = (0..n).map(|at| u8::from(at >= n_context)).collect();
        let logprobs: Vec<f64> =
            (0..n).map(|at| if at < n_context { 0.0 } else { -(seed.below(6_000) as f64) / 1000.0 }).collect();
        let messages = json!([
            {"role": "system", "content": "You are a careful agent."},
            {"role": "user", "content": format!("task of {id}, part {index}: {:016x}", seed.next())},
            {"role": "assistant", "content": format!("answer {:016x} to {id}", seed.next())},
        ]);
        what.n_tokens += n as i64;
        what.n_trained_tokens += (n - n_context) as i64;
        what.n_messages += 3;
        what.token_sum += tokens.iter().sum::<i64>();
        let segment = json!({
            "segment_index": index,
            "tokens": tokens,
            "full_loss_mask": mask,
            "full_logprobs": logprobs,
            "messages": messages,
            "finish_reason": "stop",
            "extra_info": {"part": index},
        });
        write!(segments, "{}{segment}", if index == 0 { "" } else { "," })?;
    }
    let head = format!(
        "\"trajectory_id\":\"{id}\",\"instance_id\":\"task-{}\",\"reward\":{},\"status\":\"completed\"",
        number / 4,
        reward_hundredths as f64 / 100.0
    );
    Ok((format!("{{{head},\"segments\":[{segments}]}}"), what))
}

#[cfg(test)]
mod tests {
    use super::Workload;
    use crate::Seed;

    #[test]
    fn every_line_is_json_that_says_what_is_expected_of_it() {
        let workload = Workload::make(&Seed::new(11), "w", 20, 60).expect("makes");
        assert_eq!(workload.expected.len(), 20);
        for line in &workload.lines {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let expected = &workload.expected[value["trajectory_id"].as_str().expect("an id")];
            let segments = value["segments"].as_array().expect("segments");
            assert_eq!(segments.len() as i64, expected.n_segments);
            let tokens: Vec<i64> = segments
                .iter()
                .flat_map(|segment| segment["tokens"].as_array().expect("tokens").iter())
                .map(|id| id.as_i64().expect("an id"))
                .collect();
            assert_eq!((tokens.len() as i64, tokens.iter().sum()), (expected.n_tokens, expected.token_sum));
            let reward = (value["reward"].as_f64().expect("a reward") * 100.0).round() as i64;
            assert_eq!(reward, expected.reward_hundredths);
        }
    }
}
