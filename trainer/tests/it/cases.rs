//! The fixtures: a tiny model each, its input, and the numbers that it should give.

use std::collections::HashMap;
use std::path::PathBuf;

use dressage_trainer::{Folder, ForwardOptions, Model, ModelOptions, PackedRow, RoutedExperts, ScoreOptions, Segment};
use tch::{Kind, Tensor};

/// As in `make_fixtures.py`.
pub(crate) const ENTROPY_WEIGHT: f64 = 0.05;

pub(crate) const CASES: [&str; 10] = [
    "llama_tied",
    "llama_biases",
    "llama_rope3",
    "qwen2",
    "qwen2_tied",
    "qwen3",
    "qwen3_tied",
    "qwen3_moe",
    "qwen3_moe_raw",
    "qwen3_moe_mixed",
];

pub(crate) const CASES_WITH_EXPERTS: [&str; 3] = ["qwen3_moe", "qwen3_moe_raw", "qwen3_moe_mixed"];

/// One fixture.
pub(crate) struct Case {
    pub(crate) model: Model,
    pub(crate) row: PackedRow,
    pub(crate) segments: Vec<Segment>,
    pub(crate) expected: HashMap<String, Tensor>,
}

impl Case {
    pub(crate) fn load(name: &'static str) -> Self {
        Self::load_as(name, ModelOptions::default())
    }

    pub(crate) fn load_as(name: &'static str, options: ModelOptions) -> Self {
        // two threads on a busy machine wait for each other, and sums would depend on their number
        tch::set_num_threads(1);
        let folder = folder(name);
        let model = Model::load(&Folder::at(&folder), options).expect("model");
        let expected: HashMap<String, Tensor> =
            Tensor::read_safetensors(folder.join("expected.safetensors")).expect("expected").into_iter().collect();
        let tokens = ints(&expected["token_ids"]);
        let mut rest = tokens.as_slice();
        let segments: Vec<Segment> = ints(&expected["lengths"])
            .into_iter()
            .map(|n| {
                let (segment, after) = rest.split_at(n as usize);
                rest = after;
                Segment::of(segment.to_vec())
            })
            .collect();
        let row = PackedRow::new(segments.clone()).expect("row");
        Self { model, row, segments, expected }
    }

    /// Each segment as a row of its own.
    pub(crate) fn rows_alone(&self) -> Vec<PackedRow> {
        self.segments.iter().map(|s| PackedRow::new(vec![s.clone()]).expect("row")).collect()
    }

    /// Forward, the oracle's loss, and all the way back; gives log-probs and entropies.
    pub(crate) fn run(&self, row: &PackedRow, forward: ForwardOptions, scores: ScoreOptions) -> (Tensor, Tensor) {
        let weight = self.expected["loss_weight"].shallow_clone();
        run_loss(&self.model, row, &weight, forward, scores)
    }

    /// The gradient of a parameter, as the oracle names it.
    pub(crate) fn gradients(&self) -> Vec<(String, Tensor)> {
        let gradient = |p: &dressage_trainer::Parameter| p.gradient().expect("gradient").expect("there is one");
        self.model.parameters().iter().map(|p| (p.name().to_owned(), gradient(p))).collect()
    }

    /// Expected values of a parameter, put together from those of the stored tensors.
    pub(crate) fn expected_of(&self, what: &str, parameter: &str) -> Tensor {
        let stored = |name: &str| self.expected[&format!("{what}.{name}")].shallow_clone();
        let n_experts = self.model.config().experts.as_ref().map_or(0, |e| e.n_experts);
        if let Some(prefix) = parameter.strip_suffix("gate_up_proj") {
            let expert = |e: i64| {
                let part = |p: &str| stored(&format!("{prefix}{e}.{p}_proj.weight"));
                Tensor::cat(&[part("gate"), part("up")], 0)
            };
            return Tensor::stack(&(0..n_experts).map(expert).collect::<Vec<_>>(), 0);
        }
        if let Some(prefix) = parameter.strip_suffix("experts.down_proj") {
            let expert = |e: i64| stored(&format!("{prefix}experts.{e}.down_proj.weight"));
            return Tensor::stack(&(0..n_experts).map(expert).collect::<Vec<_>>(), 0);
        }
        stored(parameter)
    }
}

/// Forward, the oracle's loss, and all the way back; gives log-probs and entropies, `[T]` each.
pub(crate) fn run_loss(
    model: &Model,
    row: &PackedRow,
    weight: &Tensor,
    forward: ForwardOptions,
    scores: ScoreOptions,
) -> (Tensor, Tensor) {
    let trace = model.forward(row, forward).expect("forward");
    let scores = trace.scores(None, ScoreOptions { entropy: true, ..scores }).expect("scores");
    let entropy = scores.entropy.as_ref().expect("asked for");
    let loss = -(weight * &scores.logprobs).sum(Kind::Float) - entropy.sum(Kind::Float) * ENTROPY_WEIGHT;
    loss.backward();
    let found = (scores.logprobs.detach(), entropy.detach());
    trace.backward(scores).expect("backward");
    found
}

/// The experts that a free pass over the row chose, one entry a segment.
pub(crate) fn record(case: &Case) -> Vec<Option<RoutedExperts>> {
    let trace = case.model.forward(&case.row, ForwardOptions::default()).expect("forward");
    trace.routed_experts(&case.row).expect("experts").into_iter().map(Some).collect()
}

pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub(crate) fn ints(tensor: &Tensor) -> Vec<i32> {
    Vec::try_from(tensor.to_kind(Kind::Int).reshape([-1])).expect("ints")
}

/// The largest difference.
pub(crate) fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    if a.numel() == 0 {
        return 0.0;
    }
    (a.detach().to_kind(Kind::Double) - b.detach().to_kind(Kind::Double)).abs().max().double_value(&[])
}

/// The largest difference as a share of `b`'s 2-norm.
pub(crate) fn relative_distance(a: &Tensor, b: &Tensor) -> f64 {
    distance(a, b) / b.to_kind(Kind::Double).norm().double_value(&[]).max(1e-12)
}
