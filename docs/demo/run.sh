#!/usr/bin/env bash
# The demo: reads the rollouts that ship here into ./demo-store, asks four questions, shows one trajectory, and trains a
# tiny model on them. No network once it is built.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-$HOME/.cache/dressage/target}
store=demo-store
weights=demo-weights
tokenizer=tests/data/tokenizers/qwen3.tokenizer.json.zst

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '\033[2m$ dressage %s\033[0m\n' "$*"; "$target/debug/dressage" "$@"; }
if [ ! -t 1 ]; then
    say() { printf '\n%s\n' "$*"; }
    run() { printf '$ dressage %s\n' "$*"; "$target/debug/dressage" "$@"; }
fi

say "Building (the first time: 500 crates, 10 to 15 minutes on two cores)"
cargo build --locked -p dressage

# settings of the person who runs this should not change what they see
unset DRESSAGE_STORE DRESSAGE_CONFIG
export PAGER=cat
rm -rf "$store" "$weights"

say "1. Real rollouts in: five formats, told by their content"
run ingest tests/data/nemo-gym tests/data/agent-lightning tests/data/claude-code tests/data/swe-agent \
    tests/data/inspect --store "$store" --label from=demo

say "2. The same again: nothing is stored twice"
run ingest tests/data/nemo-gym tests/data/claude-code --store "$store" --label from=demo

say "3. What is in the store"
run stats --store "$store"

say "4. Four questions"
for file in docs/demo/[1-4]-*.sql; do
    printf '\n'
    sed -n 's/^-- //p' "$file"
    run sql --file "$file" --store "$store" --tokenizer "$tokenizer"
done

say "5. One trajectory: trained tokens green (in brackets where there are no colours), masked ones dim"
shown=$("$target/debug/dressage" sql --store "$store" --format csv \
    "select trajectory_id from trajectories where source like '%blackjack%' and n_steps > 1 order by 1 limit 1" | tail -n 1)
run show "$shown" --tokens --tokenizer "$tokenizer" --store "$store"

say "6. Training: a tiny Qwen3, untrained, on the token-bearing rollouts above"
run train --store "$store" --config docs/demo/train.toml --model docs/demo/model --out "$weights"
run sql --store "$store" "select optimizer_step as train_step, round(max(value) filter (where metric = 'loss'), 3) as loss,
    round(max(value) filter (where metric = 'grad_norm'), 3) as grad_norm,
    cast(max(value) filter (where metric = 'trained_tokens') as int) as trained_tokens
    from train_metrics group by optimizer_step order by optimizer_step"
ls -l "$weights"

say "What to type next"
cat <<TEXT
  alias dressage=$target/debug/dressage
  dressage sql --store $store                      the prompt: \\d lists tables, \\? helps
  dressage ls --store $store --sort -n_tokens
  dressage export --to parquet out --store $store
  dressage plot --store $store -o curves.svg       loss, reward and others over train steps
  docs/demo/learn.sh                               a policy gets better at a game it plays, in a minute
  dressage ingest ~/.claude/projects               your own Claude Code sessions, into ./store
  dressage --help
TEXT
