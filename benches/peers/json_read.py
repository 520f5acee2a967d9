"""DuckDB or Polars: a JSON-lines file into memory, every column."""

import json
import sys
import time

engine, path = sys.argv[1:3]
if engine == "duckdb":
    import duckdb

    connection = duckdb.connect()
    start, start_cpu = time.perf_counter(), time.process_time()
    connection.execute(
        "CREATE TABLE load AS SELECT * FROM read_json(?, format = 'newline_delimited', maximum_object_size = 1000000000)",
        [path],
    )
    rows = connection.execute("SELECT count(*) FROM load").fetchone()[0]
else:
    import polars

    start, start_cpu = time.perf_counter(), time.process_time()
    rows = polars.read_ndjson(path).height
seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "rows": rows}))
