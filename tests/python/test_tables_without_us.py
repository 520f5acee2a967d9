"""The stored tables, read with the Lance package and nothing of ours."""

import array
import json
import unittest

import lance

from lake import DATA, StoreOfRealRollouts, sql


class TablesWithoutUs(StoreOfRealRollouts):
    def table(self, name):
        return lance.dataset(str(self.store / f"{name}.lance"))

    def test_every_table_opens_and_says_its_schema_version(self):
        record = json.loads((self.store / "dressage.json").read_text())
        for name in ("contents", "weight_versions", "steps", "rewards", "quarantine", "ingest_log", "trajectories", "snapshots", "batches", "plans", "streamed", "train_metrics", "trainer_logprobs", "checkpoints"):
            with self.subTest(table=name):
                version = self.table(name).schema.metadata[b"dressage:schema_version"]
                self.assertEqual(int(version), record["schema_version"])

    def test_a_trajectory_joins_its_steps_by_key_and_write_id(self):
        trajectories = self.table("trajectories").to_table(columns=["trajectory_key", "write_id", "n_steps"]).to_pylist()
        steps = self.table("steps").to_table(columns=["trajectory_key", "write_id"]).to_pylist()
        counts = {}
        for step in steps:
            place = (step["trajectory_key"], step["write_id"])
            counts[place] = counts.get(place, 0) + 1
        self.assertEqual(len(trajectories), self.report["trajectories_new"])
        for row in trajectories:
            with self.subTest(key=row["trajectory_key"]):
                self.assertEqual(counts[row["trajectory_key"], row["write_id"]], row["n_steps"])

    def test_token_ids_are_little_endian_integers_of_the_source(self):
        text = (DATA / "nemo-gym" / "tokens_blackjack.jsonl").read_text()
        source = [json.loads(line) for line in text.splitlines()]
        generated = sorted(
            tuple(item["generation_token_ids"])
            for row in source
            for item in row["response"]["output"]
            if item.get("generation_token_ids")
        )
        rows = self.table("trajectories").to_table(filter="source LIKE '%tokens_blackjack%'").to_pylist()
        keys = ", ".join(str(row["trajectory_key"]) for row in rows)
        columns = ["token_ids", "logprobs", "n_context_tokens", "n_output_tokens"]
        steps = self.table("steps").to_table(columns=columns, filter=f"trajectory_key IN ({keys})").to_pylist()
        stored = []
        for step in steps:
            ids = array.array("i", step["token_ids"])
            logprobs = array.array("f", step["logprobs"])
            self.assertEqual(len(ids), step["n_context_tokens"] + step["n_output_tokens"])
            self.assertEqual(len(ids), len(logprobs))
            stored.append(tuple(ids[step["n_context_tokens"] :]))
        self.assertEqual(sorted(stored), generated)

    def test_the_lance_package_and_our_sql_count_the_same(self):
        for table, view in (("quarantine", "quarantine"), ("trajectories", "trajectories")):
            with self.subTest(table=table):
                ours = sql(self.store, f"select count(*) as n from {view}")[0]["n"]
                self.assertEqual(self.table(table).count_rows(), ours)


if __name__ == "__main__":
    unittest.main()
