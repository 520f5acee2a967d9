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
export PATH := $(HOME)/.cargo/bin:$(PATH)

PYTHON := $(DRESSAGE_VENV)/bin/python

.PHONY: help setup setup-system setup-python demo test test-rust test-python check fmt bench pages clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

setup: setup-system setup-python ## Install what building and testing need; says what, and does nothing twice

setup-system:
	@.ci/setup system

setup-python:
	@.ci/setup python

demo: setup-system ## Build, read the rollouts that ship here, ask four questions, show one trajectory
	@docs/demo/run.sh

test: setup check test-rust test-python ## Everything that CI runs
	@echo "make test: all of it passed"

test-rust: setup
	cargo test --workspace --locked --no-fail-fast

test-python: setup test-rust
	$(PYTHON) -m unittest discover --start-directory tests/python --verbose

check: setup-system ## Formatting, lints, house rules, documentation
	cargo fmt --all --check
	cargo run --quiet --locked -p dressage-tidy
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

fmt: ## Format the sources
	cargo fmt --all

bench: setup ## The numbers of docs/benchmarks.md (a release build: half an hour cold)
	cargo bench --locked -p dressage

pages: ## Write docs/commands from the command's own help
	cargo run --quiet --locked -- reference-pages docs/commands

clean: ## Remove the demo's store; compiled dependencies stay (rm -r ~/.cache/dressage removes those)
	rm -rf demo-store
