"""pyarrow: the batches of an IPC file as zstd Parquet, synced. Reading them is not timed."""

import json
import os
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq

source, target = sys.argv[1:3]
reader = pa.ipc.open_file(pa.memory_map(source))
seconds = 0.0
writer = pq.ParquetWriter(target, reader.schema, compression="zstd")
for index in range(reader.num_record_batches):
    batch = reader.get_batch(index)
    start = time.perf_counter()
    writer.write_batch(batch)
    seconds += time.perf_counter() - start
start = time.perf_counter()
writer.close()
descriptor = os.open(target, os.O_RDONLY)
os.fsync(descriptor)
seconds += time.perf_counter() - start
print(json.dumps({"seconds": seconds, "bytes": os.path.getsize(target)}))
