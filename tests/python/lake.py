"""A store made by the built command, for tests that then read it without us."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path.home() / ".cache/dressage/target"))
COMMAND = pathlib.Path(os.environ.get("DRESSAGE_COMMAND", TARGET / "debug" / "dressage"))
ROLLOUTS = [DATA / "nemo-gym", DATA / "agent-lightning", DATA / "claude-code", DATA / "swe-agent", DATA / "inspect"]


def dressage(*arguments, code=0):
    """Runs the command and gives its standard output."""
    names = [name for name in os.environ if name.startswith(("DRESSAGE__", "AWS_")) or name == "DRESSAGE_STORE"]
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, env=environment)
    if done.returncode != code:
        raise AssertionError(f"exit code {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def sql(store, query):
    """Rows of a query as dictionaries."""
    return json.loads(dressage("sql", query, "--store", store, "--json"))


class StoreOfRealRollouts(unittest.TestCase):
    """One store for all tests of a class: the rollouts that ship in the repository."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name)
        cls.store = cls.path / "store"
        cls.report = json.loads(dressage("ingest", *ROLLOUTS, "--store", cls.store, "--json"))
