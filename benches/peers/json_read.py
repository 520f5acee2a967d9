"""DuckDB or Polars: a JSON-lines file into memory, every column."""

import json
import sys
import time

engine, path = sys.argv[1:3]
if engine == "duckdb":
    import duckdb

    connection = duckdb.connect()
    start = time.perf_counter()
    connection.execute(
        "CREATE TABLE load AS SELECT * FROM read_json(?, format = 'newline_delimited', maximum_object_size = 1000000000)",
        [path],
    )
    rows = connection.execute("SELECT count(*) FROM load").fetchone()[0]
else:
    import polars

    start = time.perf_counter()
    rows = polars.read_ndjson(path).height
print(json.dumps({"seconds": time.perf_counter() - start, "rows": rows}))
