#!/usr/bin/env bash
# A tiny model learns to count by policy gradient: play, ingest, train, and again. About a minute. No network.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-$HOME/.cache/dressage/target}
rounds=${1:-7}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo build --locked --quiet -p dressage --bins --example counting
dressage() { "$target/debug/dressage" --quiet --store "$work/store" "$@"; }
counting() { "$target/debug/examples/counting" "$@"; }

cat >"$work/train.toml" <<'TOML'
[plan]
global_batch_size = 48
max_tokens_per_micro_batch = 4096

[weights]
init = "random"
init_deviation = 0.1

[optimizer]
learning_rate = 1e-2
weight_decay = 0.0

[loss]
kind = "ppo_clip"
TOML

counting init "$work/untrained"
policy=$work/untrained
for round in $(seq 1 "$rounds"); do
    counting play "$policy" "$work/rollouts.jsonl" "$round"
    dressage ingest "$work/rollouts.jsonl" >/dev/null
    dressage train --config "$work/train.toml" --model "$work/untrained" --out "$work/counting" >/dev/null
    policy=$work/counting
done
counting play "$policy" "$work/rollouts.jsonl" $((rounds + 1))
dressage sql "select optimizer_step as train_step, round(value, 3) as reward_mean from train_metrics
    where metric = 'reward_mean' order by optimizer_step"
