"""Exports, read with DuckDB, Polars and pyarrow, with nothing of ours."""

import json
import unittest

import duckdb
import polars
import pyarrow.ipc
import pyarrow.parquet

from lake import StoreOfRealRollouts, dressage, sql


def first_row(query):
    """The first row of a DuckDB query."""
    return duckdb.sql(query).fetchall()[0]


class ExportWithoutUs(StoreOfRealRollouts):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.parquet = cls.path / "parquet"
        dressage("export", "--to", "parquet", cls.parquet, "--store", cls.store)
        cls.files = f"{cls.parquet}/**/*.parquet"

    def test_duckdb_counts_what_the_store_counts(self):
        ours = sql(
            self.store,
            "select count(*) as segments, count(distinct trajectory_key) as trajectories, sum(n_tokens) as tokens, "
            "sum(n_trained_tokens) as trained from segments",
        )[0]
        theirs = first_row(
            "select count(*), count(distinct (run_id, trajectory_id)), sum(len(tokens)), "
            f"sum(list_sum(full_loss_mask)) from '{self.files}'"
        )
        self.assertEqual(theirs, (ours["segments"], ours["trajectories"], ours["tokens"], ours["trained"]))

    def test_token_columns_of_a_segment_have_one_length(self):
        wrong = first_row(
            f"select count(*) from '{self.files}' where len(tokens) <> len(full_loss_mask) "
            "or len(tokens) <> len(full_logprobs) or len(tokens) <> len(full_versions)"
        )
        self.assertEqual(wrong, (0,))
        self.assertGreater(first_row(f"select count(tokens) from '{self.files}'")[0], 0)

    def test_polars_reads_the_folder_and_its_rewards(self):
        ours = sql(self.store, "select avg(reward) as mean, count(reward) as n from trajectories")[0]
        frame = polars.scan_parquet(self.files).group_by("run_id", "trajectory_id").agg(polars.col("reward").first())
        rewards = frame.collect()["reward"].drop_nulls()
        self.assertEqual(rewards.len(), ours["n"])
        self.assertAlmostEqual(rewards.mean(), ours["mean"])

    def test_parquet_arrow_and_json_lines_come_back_as_the_same_segments(self):
        arrow = self.path / "all.arrow"
        lines = self.path / "all.jsonl"
        dressage("export", "--to", "arrow", arrow, "--store", self.store)
        dressage("export", "--to", "jsonl", lines, "--store", self.store)
        with pyarrow.ipc.open_file(arrow) as reader:
            self.assertEqual(reader.read_all().num_rows, first_row(f"select count(*) from '{self.files}'")[0])
        query = (
            "select s.trajectory_id, s.segment_index, s.n_tokens, s.n_trained_tokens, s.n_messages, t.status, t.reward, "
            "t.instance_id, t.group_id, t.run_id from segments s join trajectories t using (trajectory_key) order by 1, 2, 10"
        )
        before = sql(self.store, query)
        for name, source in (("parquet", self.parquet), ("arrow", arrow), ("jsonl", lines)):
            with self.subTest(way=name):
                copy = self.path / f"copy-{name}"
                report = json.loads(dressage("ingest", source, "--store", copy, "--json"))
                self.assertEqual(report["quarantined"], 0)
                self.assertEqual(sql(copy, query), before)

    def test_chats_have_messages_that_begin_with_a_role(self):
        chats = self.path / "chats.jsonl"
        dressage("export", "--to", "hf-chat", chats, "--store", self.store)
        rows = [json.loads(line) for line in chats.read_text().splitlines()]
        self.assertEqual(len(rows), sql(self.store, "select count(*) as n from segments where n_messages > 0")[0]["n"])
        for row in rows:
            for message in row["messages"]:
                self.assertIn("role", message)


if __name__ == "__main__":
    unittest.main()
