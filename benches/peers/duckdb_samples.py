"""The same SQL files in DuckDB, over Parquet of the same metadata: rows and best seconds of each query.

What DuckDB lacks is given to it as macros, each the simplest that is right for this load (no cap, no version masking), and
what it spells differently is spelt for it; settings are put in as constants.
"""

import json
import re
import sys
import time
from pathlib import Path

import duckdb

sql_dir, tables_dir, threads, settings, queries = sys.argv[1:6]
settings, queries = json.loads(settings), json.loads(queries)

MACROS = """
CREATE MACRO arrow_cast(x, t) AS x::BIGINT;
CREATE MACRO make_array(x) AS [x];
CREATE MACRO n_values(x) AS len(x);
CREATE MACRO mask_sum(s) AS coalesce(list_sum(s[2:-:2]), 0)::BIGINT;
CREATE MACRO mask_start(s) AS coalesce(s[1], 0)::BIGINT;
CREATE MACRO mask_cap(s, n) AS s;
CREATE MACRO train_mask(s, v, f) AS s;
CREATE MACRO mask_none(s) AS [list_sum(s)::INTEGER];
CREATE MACRO is_real_version(v) AS v NOT IN ('', '-1', 'unknown', 'none');
CREATE MACRO trained_versions(s, v, one) AS
  list_distinct(list_filter([x.weight_version for x in v], lambda x: x NOT IN ('', '-1', 'unknown', 'none')));
CREATE MACRO first_trained_version(s, v, one) AS
  coalesce(list_filter([x.weight_version for x in v], lambda x: x NOT IN ('', '-1', 'unknown', 'none'))[1], one);
CREATE MACRO last_trained_version(s, v, one) AS
  coalesce(list_filter([x.weight_version for x in v], lambda x: x NOT IN ('', '-1', 'unknown', 'none'))[-1], one);
"""

# Name of the view, its file: those that apply to segments as given, rewards as recorded, the default settings.
VIEWS = [
    ("trajectories", "trajectories_recorded"),
    ("internal.numbered_steps", "numbered_steps_given"),
    ("segments", "segments_given"),
    ("weight_versions", "weight_versions"),
    ("internal.observed_versions", "observed_versions"),
    ("internal.candidates", "candidates"),
    ("groups", "groups"),
    ("anchors", "anchors"),
    ("internal.kept", "kept"),
    ("internal.kept_segments", "kept_segments"),
    ("internal.advantages", "estimators/grpo"),
    ("internal.rated", "rated"),
    ("internal.weighed", "aggregations/prompt_mean"),
    ("samples", "samples"),
]


def translated(text):
    def constant(match):
        value = settings.get(match.group(1))
        return "NULL" if value is None else f"'{value}'"

    text = re.sub(r"setting\('(\w+)'\)", constant, text)
    # a branch that these settings never take, but whose window DuckDB would compute all the same
    text = re.sub(r"CASE\s+WHEN 'last_segment' = 'main_lineage' THEN.*?ELSE (.*?)\s+END AS is_anchor",
                  r"\1 AS is_anchor", text, flags=re.S)
    text = text.replace("exact_mean(", "avg(").replace("exact_std(", "stddev_pop(")
    return text.replace("cardinality(", "n_values(")


connection = duckdb.connect()
connection.execute(f"SET threads = {threads}; CREATE SCHEMA stored; CREATE SCHEMA internal;")
for table in ("trajectories", "steps", "weight_versions"):
    path = Path(tables_dir) / f"{table}.parquet"
    connection.execute(f"CREATE VIEW stored.{table} AS SELECT * FROM read_parquet('{path}')")
connection.execute(MACROS)
for name, file in VIEWS:
    text = (Path(sql_dir) / f"{file}.sql").read_text()
    connection.execute(f"CREATE VIEW {name} AS {translated(text)}")
answers = []
for query in queries:
    best, total = float("inf"), None
    for _ in range(3):
        start = time.perf_counter()
        # Arrow, so that neither side pays for Python objects.
        table = connection.sql(query).to_arrow_table()
        best = min(best, time.perf_counter() - start)
    answers.append({"rows": table.num_rows, "seconds": best})
checks = "SELECT sum(advantage), sum(denominator), sum(mask_sum), sum(raw_reward) FROM samples"
sums = [float(value) for value in connection.execute(checks).fetchone()]
print(json.dumps({"queries": answers, "sums": sums}))
