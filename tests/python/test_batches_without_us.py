"""The micro-batches of a plan, read with pyarrow from the pipe."""

import json
import subprocess
import unittest

import pyarrow as pa

from lake import COMMAND, StoreOfRealRollouts, dressage, sql


class BatchesWithoutUs(StoreOfRealRollouts):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        shape = ["--global-batch-size", "4", "--max-tokens-per-micro-batch", "4096", "--world-size", "2"]
        cls.plan = json.loads(dressage("plan", "--all-runs", *shape, "--store", cls.store, "--json"))["plan_id"]

    def read(self, rank):
        arguments = ["batches", "--plan", self.plan, "--rank", str(rank), "--world-size", "2", "--store", self.store]
        with subprocess.Popen([COMMAND, *arguments, "--quiet"], stdout=subprocess.PIPE) as process:
            with pa.ipc.open_stream(process.stdout) as stream:
                batches = list(stream)
            self.assertEqual(process.wait(), 0)
        return batches

    def test_both_ranks_together_have_the_plan(self):
        batches = self.read(0) + self.read(1)
        planned = sql(
            self.store,
            "select count(*) as samples, sum(n_tokens) as tokens, sum(mask_sum) as trained from batches "
            f"where plan_id = '{self.plan}'",
        )[0]
        tokens = [token for batch in batches for row in batch["token_ids"].to_pylist() for token in row]
        trained = sum(sum(row) for batch in batches for row in batch["loss_mask"].to_pylist())
        self.assertEqual(sum(batch.num_rows for batch in batches), planned["samples"])
        self.assertEqual((len(tokens), trained), (planned["tokens"], planned["trained"]))

    def test_lists_of_a_sample_have_one_length_and_positions_count_up(self):
        for batch in self.read(0):
            for row in batch.to_pylist():
                n = row["n_tokens"]
                self.assertEqual(row["position_ids"], list(range(n)))
                self.assertEqual((len(row["token_ids"]), len(row["loss_mask"])), (n, n))
                if row["logprobs"] is not None:
                    self.assertEqual(len(row["logprobs"]), n)
                if row["weight_versions"] is not None:
                    self.assertEqual(sum(row["weight_version_lengths"]), n)
                self.assertEqual(sum(row["loss_mask"][: row["response_start"]]), 0)

    def test_ranks_have_as_many_micro_batches(self):
        first, second = self.read(0), self.read(1)
        self.assertEqual(len(first), len(second))
        metadata = first[0].schema.metadata
        counts = [int(n) for n in metadata[b"dressage:micro_batches"].decode().split(",")]
        self.assertEqual(sum(counts), len(first))


if __name__ == "__main__":
    unittest.main()
