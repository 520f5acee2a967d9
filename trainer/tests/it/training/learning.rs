//! It learns: a tiny model gets better at a rule by policy gradient, from its own samples and their rewards alone.

use dressage_trainer::{Model, SampleOptions, Sampled, Trainer};

use crate::training::made::{Row, VOCAB_SIZE, micro_batch, model, settings, step};

const GROUPS: usize = 4;
const GROUP_SIZE: usize = 16;
const NEW_TOKENS: usize = 4;

/// The share of tokens that are in the same half of the vocabulary as the one before.
fn reward(prompt: &[i32], sampled: &Sampled) -> f64 {
    let all = [prompt, &sampled.token_ids].concat();
    let half = |token: i32| token / (VOCAB_SIZE / 2);
    let stays = all.windows(2).skip(prompt.len() - 1).filter(|pair| half(pair[0]) == half(pair[1])).count();
    stays as f64 / sampled.token_ids.len() as f64
}

fn prompts(seed: u64) -> Vec<Vec<i32>> {
    let of = |group: usize| vec![group as i32, (seed as i32 * 5 + group as i32 * 7) % VOCAB_SIZE];
    (0..GROUPS).flat_map(|group| vec![of(group); GROUP_SIZE]).collect()
}

fn sample(model: &Model, prompts: &[Vec<i32>], seed: u64) -> Vec<Sampled> {
    model.sample(prompts, SampleOptions { new_tokens_max: NEW_TOKENS, seed, ..SampleOptions::default() }).unwrap()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Rows of samples with the advantages of their groups.
fn rows(prompts: &[Vec<i32>], sampled: &[Sampled], rewards: &[f64]) -> Vec<Row> {
    let of = |at: usize| {
        let (prompt, sampled) = (&prompts[at], &sampled[at]);
        let group = &rewards[at / GROUP_SIZE * GROUP_SIZE..][..GROUP_SIZE];
        let deviation = mean(&group.iter().map(|r| (r - mean(group)).powi(2)).collect::<Vec<_>>()).sqrt();
        let tokens = [prompt.as_slice(), &sampled.token_ids].concat();
        Row {
            loss_mask: (0..tokens.len()).map(|at| i8::from(at >= prompt.len())).collect(),
            logprobs: Some([vec![0.0; prompt.len()], sampled.logprobs.clone()].concat()),
            advantage: (rewards[at] - mean(group)) / deviation.max(1e-6),
            loss_weight: 1.0 / (prompts.len() * NEW_TOKENS) as f64,
            ..Row::of(format!("sample-{at}"), &tokens)
        }
    };
    (0..prompts.len()).map(of).collect()
}

#[test]
fn a_policy_gradient_makes_a_rules_reward_grow() {
    for seed in [1, 2, 3] {
        let mut settings = settings("[step]\ntrain_steps_per_policy = 2\n[kl]\ncoefficient = 0.001");
        settings.optimizer.eps = 1e-8;
        settings.optimizer.learning_rate = 2e-2;
        let mut trainer = Trainer::new(model(seed), Some(model(seed)), settings).unwrap();
        let n_parameters: usize = trainer.model().parameters().iter().map(|p| p.tensor().numel()).sum();
        assert!(n_parameters <= 300_000, "{n_parameters}");
        let mut history = Vec::new();
        for round in 0..16 {
            let prompts = prompts(round);
            let sampled = sample(trainer.model(), &prompts, 1000 * seed as u64 + round);
            let rewards: Vec<f64> = prompts.iter().zip(&sampled).map(|(p, s)| reward(p, s)).collect();
            history.push(mean(&rewards));
            let rows = rows(&prompts, &sampled, &rewards);
            // two train steps of two micro-batches each, over one policy
            let place = |at: usize| (2 * round as i32 + at as i32 / 2, at as i32 % 2);
            let batches: Vec<_> =
                rows.chunks(16).enumerate().map(|(at, rows)| micro_batch(&trainer, place(at), rows)).collect();
            let old: Vec<_> = batches.iter().map(|batch| trainer.logprobs(batch).unwrap()).collect();
            for at in [0, 2] {
                let report =
                    step(&mut trainer, &[(&batches[at], Some(&old[at])), (&batches[at + 1], Some(&old[at + 1]))]);
                assert_eq!(report.not_finite(), None);
            }
        }
        let (first, last) = (mean(&history[..3]), mean(&history[13..]));
        assert!((0.3..0.75).contains(&first), "seed {seed}: {history:?}");
        assert!(last > 0.75 && last > first + 0.15, "seed {seed}: from {first:.2} to {last:.2}: {history:?}");
    }
}
