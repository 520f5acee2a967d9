# Two commands are enough on a fresh machine: `make demo` and `make test`. See README.md.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Outside the clone, so that two clones share the compiled dependencies (they take minutes).
export DRESSAGE_CACHE ?= $(HOME)/.cache/dressage
export CARGO_TARGET_DIR ?= $(DRESSAGE_CACHE)/target
export DRESSAGE_VENV ?= $(DRESSAGE_CACHE)/venv
export DRESSAGE_WEED ?= $(DRESSAGE_VENV)/bin/weed
# The folder behind the link, which is the same in all clones: a clone's own path would make each of them compile the
# libtorch wrappers again in the shared target folder. Looked up when a recipe runs, after setup-torch made the link.
LIBTORCH ?= $(shell readlink -f .libtorch)
export LIBTORCH
export PATH := $(HOME)/.cargo/bin:$(PATH)

PYTHON := $(DRESSAGE_VENV)/bin/python

.PHONY: help setup setup-system setup-torch setup-python demo learn test test-rust test-python check fmt bench bench-step oracle parity-real pages clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

setup: setup-system setup-torch setup-python ## Install what building and testing need; says what, and does nothing twice

setup-system:
	@.ci/setup system

setup-torch:
	@.ci/setup-torch

setup-python:
	@.ci/setup python

demo: setup-system setup-torch ## Build, read the rollouts that ship here, ask four questions, train a tiny model
	@docs/demo/run.sh

learn: setup-system setup-torch ## A tiny policy gets better at a game: play, ingest, train, and again
	@docs/demo/learn.sh

test: setup check test-rust test-python ## Everything that CI runs
	@echo "make test: all of it passed"

test-rust: setup
	cargo test --workspace --locked --no-fail-fast

test-python: setup test-rust
	$(PYTHON) -m unittest discover --start-directory tests/python --verbose

check: setup-system setup-torch ## Formatting, lints, house rules, documentation
	cargo fmt --all --check
	cargo run --quiet --locked -p dressage-tidy
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

fmt: ## Format the sources
	cargo fmt --all

bench: setup ## The numbers of docs/benchmarks.md (a release build: half an hour cold)
	cargo bench --locked -p dressage

oracle: setup-system ## Make trainer/tests/fixtures again, with transformers and torch (5 GB of Python packages)
	@.ci/setup oracle
	$(DRESSAGE_CACHE)/venv-oracle/bin/python trainer/tests/oracle/make_fixtures.py trainer/tests/fixtures

bench-step: setup-system setup-torch ## A train step against PyTorch eager and transformers (5 GB of Python packages)
	@.ci/setup oracle
	DRESSAGE_ORACLE_PYTHON=$(DRESSAGE_CACHE)/venv-oracle/bin/python \
		cargo bench --locked -p dressage-trainer --bench train_step -- $(MODELS)

parity-real: setup-system setup-torch ## The perplexity of a real model (93 MB) beside that of transformers
	@.ci/setup oracle-real
	$(DRESSAGE_CACHE)/venv-oracle/bin/python trainer/tests/oracle/real_model.py $(DRESSAGE_CACHE)/smollm2-135m docs/formats.md
	DRESSAGE_REAL_MODEL=$(DRESSAGE_CACHE)/smollm2-135m \
		cargo test --locked -p dressage-trainer --test real_weights -- --ignored --nocapture

pages: ## Write docs/commands from the command's own help
	cargo run --quiet --locked -- reference-pages docs/commands

clean: ## Remove the demo's store and weights; compiled dependencies stay (rm -r ~/.cache/dressage removes those)
	rm -rf demo-store demo-weights
