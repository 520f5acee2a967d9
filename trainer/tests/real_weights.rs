//! A real model over a text of ours, against what transformers makes of both. Off by default: `make parity-real` downloads
//! the model (93 MB) and writes the expected numbers.

use std::collections::HashMap;
use std::path::PathBuf;

use dressage_trainer::{Folder, ForwardOptions, Model, ModelOptions, PackedRow, ScoreOptions, Segment};
use tch::{Kind, Tensor};

#[test]
#[ignore = "needs a model of 135 M parameters: make parity-real"]
fn a_real_model_finds_our_text_as_likely_as_transformers_does() {
    let folder = PathBuf::from(std::env::var_os("DRESSAGE_REAL_MODEL").expect("make parity-real sets it"));
    let read = Tensor::read_safetensors(folder.join("expected.safetensors")).expect("expected");
    let expected: HashMap<String, Tensor> = read.into_iter().collect();
    let ints = |name: &str| Vec::<i32>::try_from(&expected[name]).expect("ints");
    let mut tokens = ints("token_ids");
    let segments: Vec<Segment> =
        ints("lengths").iter().map(|n| Segment::of(tokens.drain(..*n as usize).collect())).collect();
    let row = PackedRow::new(segments).expect("row");
    let model = Model::load(&Folder::at(&folder), ModelOptions { trainable: false, ..ModelOptions::default() });
    let model = model.expect("model");
    let trace = model.forward(&row, ForwardOptions { gradients: false, ..ForwardOptions::default() }).expect("forward");
    let found = trace.scores(None, ScoreOptions::default()).expect("scores").logprobs;
    let n_scored = row.has_logprob().iter().filter(|b| **b).count() as f64;
    let perplexity = |logprobs: &Tensor| (-logprobs.sum(Kind::Double).double_value(&[]) / n_scored).exp();
    let (ours, theirs) = (perplexity(&found), perplexity(&expected["logprobs"]));
    let off = (&found - &expected["logprobs"]).abs().max().double_value(&[]);
    println!("{} tokens: perplexity {ours:.6}, transformers {theirs:.6}; log-probs off by {off:.1e}", row.n_tokens());
    assert!((ours - theirs).abs() < 5e-5 * theirs, "perplexity {ours} and {theirs}");
    assert!(off < 1e-3, "a log-prob is off by {off}");
}
