//! A game that a tiny model can learn: go on counting. A prompt is one digit; each of the four tokens after it that is one
//! more than the token before it (9 is followed by 0) earns a quarter.

use std::io::{self, Write};
use std::path::Path;

use dressage_trainer::{Model, SampleOptions};
use serde_json::json;

/// Digits, then the token that begins.
pub(crate) const VOCAB_SIZE: i64 = 12;
const BEGIN: i32 = 10;
const ANSWER_TOKENS: usize = 4;

/// A `config.json` of the model that plays: 30 thousand parameters.
pub(crate) fn model_config() -> serde_json::Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "attention_bias": false,
        "torch_dtype": "float32",
    })
}

/// One game.
#[derive(Debug, Clone)]
pub(crate) struct Game {
    /// The digit that it began with.
    pub(crate) digit: i32,
    /// Games of a round whose rewards are compared with each other.
    pub(crate) group: usize,
    /// All tokens, those of the prompt first.
    pub(crate) token_ids: Vec<i32>,
    /// Log-probs of the answer's tokens.
    pub(crate) logprobs: Vec<f32>,
    /// Between 0 and 1.
    pub(crate) reward: f64,
}

/// Plays every digit `games_per_digit` times.
pub(crate) fn play(model: &Model, games_per_digit: usize, seed: u64) -> dressage_trainer::Result<Vec<Game>> {
    let digits: Vec<i32> = (0..10).flat_map(|digit| std::iter::repeat_n(digit, games_per_digit)).collect();
    let prompts: Vec<Vec<i32>> = digits.iter().map(|digit| vec![BEGIN, *digit]).collect();
    let options = SampleOptions { new_tokens_max: ANSWER_TOKENS, seed, ..SampleOptions::default() };
    let answers = model.sample(&prompts, options)?;
    let games = digits.iter().zip(prompts).zip(answers).map(|((digit, prompt), answer)| {
        let token_ids = [prompt.as_slice(), answer.token_ids.as_slice()].concat();
        Game { digit: *digit, group: *digit as usize, reward: reward(&token_ids), token_ids, logprobs: answer.logprobs }
    });
    Ok(games.collect())
}

/// The share of the answer that goes on counting.
fn reward(token_ids: &[i32]) -> f64 {
    let right = token_ids[1..].windows(2).filter(|pair| pair[0] < 10 && pair[1] == (pair[0] + 1) % 10).count();
    right as f64 / ANSWER_TOKENS as f64
}

/// The mean reward of games.
pub(crate) fn mean_reward(games: &[Game]) -> f64 {
    games.iter().map(|game| game.reward).sum::<f64>() / games.len().max(1) as f64
}

/// Writes games as rollouts in the `dressage` format, one trajectory a line.
pub(crate) fn write(games: &[Game], round: usize, weight_version: &str, file: &Path) -> io::Result<()> {
    let mut out = io::BufWriter::new(std::fs::File::create(file)?);
    for (nth, game) in games.iter().enumerate() {
        let n_context = game.token_ids.len() - game.logprobs.len();
        let spread = |context: serde_json::Value, answer: Vec<serde_json::Value>| {
            let mut all = vec![context; n_context];
            all.extend(answer);
            all
        };
        let n_answer = game.logprobs.len();
        let line = json!({
            "trajectory_id": format!("round-{round}-game-{nth}"),
            "group_id": format!("round-{round}-group-{}", game.group),
            "instance_id": format!("digit-{}", game.digit),
            "reward": game.reward,
            "segments": [{
                "tokens": game.token_ids,
                "full_loss_mask": spread(json!(0), vec![json!(1); n_answer]),
                "full_logprobs": spread(json!(0.0), game.logprobs.iter().map(|p| json!(p)).collect()),
                "full_versions": spread(json!("-1"), vec![json!(weight_version); n_answer]),
                "finish_reason": "stop",
            }],
        });
        serde_json::to_writer(&mut out, &line)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}
