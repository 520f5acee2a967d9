#!/usr/bin/env bash
# The Python peers of the benchmarks, pinned, each set in an environment of its own (TransferQueue brings torch and
# ray, the loaders bring torch and an older numpy: several GB, which nothing else needs). Does nothing twice.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${DRESSAGE_CACHE:-$HOME/.cache/dressage}
make_env() { # folder, requirements
    [ -x "$1/bin/python" ] || python3 -m venv "$1"
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2"
}
make_env "$cache/venv" "$here/requirements.txt"
make_env "$cache/venv-tq" "$here/requirements-tq.txt"
make_env "$cache/venv-stream" "$here/requirements-stream.txt"
