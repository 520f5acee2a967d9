//! Loss, gradients and updated weights of a train step do not depend on how it was split into micro-batches.

use dressage_trainer::Trainer;
use dressage_trainer::metrics::names;
use dressage_trainer::micro_batch::MicroBatch;
use proptest::prelude::*;
use tch::{Kind, Tensor};

use crate::cases::distance;
use crate::training::made::{Row, VOCAB_SIZE, metric, micro_batch, model, settings, weights};

const LOSSES: [&str; 5] = [
    "[loss]\nkind = \"ppo_clip\"\nentropy_coefficient = 0.01\n[kl]\ncoefficient = 0.1",
    "[loss]\nkind = \"gspo\"\nclip_low = 0.2\nclip_high = 0.2\n[correction]\nkind = \"mask\"\nlevel = \"geometric\"",
    "[loss]\nkind = \"cispo\"\n[correction]\nkind = \"truncate\"\n[model]\nrecompute = true",
    "[loss]\nkind = \"reinforce\"\n[model]\ntemperature = 0.7",
    "[loss]\nkind = \"cross_entropy\"",
];

fn segment() -> impl Strategy<Value = Row> {
    let token = (0..VOCAB_SIZE, prop::bool::weighted(0.6), -4.0..0.0_f32);
    (prop::collection::vec(token, 2..10), -2.0..2.0_f64, 0.0..0.5_f64).prop_map(|(tokens, advantage, loss_weight)| {
        let token_ids: Vec<i32> = tokens.iter().map(|t| t.0).collect();
        Row {
            loss_mask: tokens.iter().map(|t| i8::from(t.1)).collect(),
            logprobs: Some(tokens.iter().map(|t| t.2).collect()),
            advantage,
            loss_weight,
            ..Row::of("a", &token_ids)
        }
    })
}

struct Found {
    loss: f64,
    gradients: Vec<(String, Tensor)>,
    weights: Vec<(String, Tensor)>,
}

/// One step; the rollout's log-probs are the old ones, so that ratios are not 1.
fn run(text: &str, parts: &[Vec<Row>]) -> Found {
    let settings = settings(text);
    let reference = (settings.kl.coefficient > 0.0).then(|| model(8));
    let mut trainer = Trainer::new(model(7), reference, settings).unwrap();
    let batches: Vec<MicroBatch> =
        parts.iter().enumerate().map(|(at, rows)| micro_batch(&trainer, (0, at as i32), rows)).collect();
    let mut step = trainer.begin_step();
    for batch in &batches {
        let outcome = step.micro_batch(batch, batch.trained.logprobs.as_ref()).unwrap();
        assert_eq!(outcome.trainer_logprobs.size(), [batch.n_trained() as i64]);
        assert_eq!(outcome.not_finite, None);
    }
    let gradient = |p: &dressage_trainer::Parameter| match p.gradient().unwrap() {
        Some(gradient) => gradient.copy(),
        None => p.tensor().zeros_like(),
    };
    let gradients = step.model().parameters().iter().map(|p| (p.name().to_owned(), gradient(p))).collect();
    let report = step.finish().unwrap();
    Found { loss: metric(&report, names::LOSS), gradients, weights: weights(&trainer) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_split_gives_the_same_loss_gradients_and_weights(
        rows in prop::collection::vec(segment(), 1..7),
        places in prop::collection::vec(0..3_usize, 7),
        which in 0..LOSSES.len(),
    ) {
        let whole = run(LOSSES[which], std::slice::from_ref(&rows));
        // one of the three may be empty, as a rank's may be
        let part = |place: usize| rows.iter().zip(&places).filter(|(_, p)| **p == place).map(|(r, _)| r.clone()).collect();
        let split = run(LOSSES[which], &[part(0), part(1), part(2)]);
        prop_assert!((whole.loss - split.loss).abs() <= 1e-5 * whole.loss.abs().max(1.0), "{} {}", whole.loss, split.loss);
        let norm = |found: &Found| {
            found.gradients.iter().map(|(_, g)| g.square().sum(Kind::Double).double_value(&[])).sum::<f64>().sqrt()
        };
        let scale = norm(&whole).max(1e-3);
        for ((name, whole), (_, split)) in whole.gradients.iter().zip(&split.gradients) {
            let off = distance(whole, split);
            prop_assert!(off <= 1e-5 * scale, "gradient of {name}: {off:.1e} beside a norm of {scale:.1e}");
        }
        for ((name, whole), (_, split)) in whole.weights.iter().zip(&split.weights) {
            let off = distance(whole, split);
            // a learning rate of 0.01 over an epsilon of 0.001
            prop_assert!(off <= 1e-4 * scale.max(1.0), "weights of {name}: {off:.1e}");
        }
    }
}
