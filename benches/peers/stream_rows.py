"""The rows of a plan in other formats, and their usual readers: micro-batches as packed tensors.

    stream_rows.py write parquet|lance|mds SOURCE TARGET     SOURCE: the Arrow stream of `dressage batches`
    stream_rows.py read  parquet|lance|mds TARGET WORKERS    one pass over all micro-batches, timed

Every reader gets the rows in the order in which it gives them out, so that it reads its files from front to back.
"""

import importlib
import json
import os
import sys
import time

import numpy as np
import pyarrow as pa

LISTS = {"token_ids": np.int32, "loss_mask": np.int8, "logprobs": np.float32}
SCALARS = ["advantage", "loss_weight"]


def batches(source):
    with pa.ipc.open_stream(pa.memory_map(source)) as reader:
        for batch in reader:
            if batch.num_rows:
                yield batch


def columns(schema):
    experts = ["routed_experts"] if "routed_experts" in schema.names else []
    return [*LISTS, *SCALARS, *experts]


def write(kind, source, target):
    sizes = [batch.num_rows for batch in batches(source)]
    names = columns(next(batches(source)).schema)
    if kind == "parquet":
        import pyarrow.parquet as pq

        schema = next(batches(source)).select(names).schema
        with pq.ParquetWriter(target, schema, compression="zstd", use_dictionary=False) as writer:
            for batch in batches(source):
                writer.write_batch(batch.select(names), row_group_size=64)
    elif kind == "lance":
        import lance

        schema = next(batches(source)).select(names).schema
        lance.write_dataset((batch.select(names) for batch in batches(source)), target, schema=schema)
    else:
        from streaming import MDSWriter

        kinds = {name: f"ndarray:{np.dtype(kind).name}" for name, kind in LISTS.items()}
        kinds |= {name: "float64" for name in SCALARS}
        if "routed_experts" in names:
            kinds["routed_experts"] = "bytes"
        with MDSWriter(out=target, columns=kinds) as writer:
            for batch in batches(source):
                for row in range(batch.num_rows):
                    sample = {name: batch[name][row].values.to_numpy(zero_copy_only=False) for name in LISTS}
                    sample |= {name: batch[name][row].as_py() for name in SCALARS}
                    if "routed_experts" in names:
                        sample["routed_experts"] = batch["routed_experts"][row].as_py()
                    writer.write(sample)
    with open(target + ".sizes.json", "w") as file:
        json.dump(sizes, file)


def packed(batch):
    """An Arrow batch as tensors laid end to end; without a copy where Arrow has none."""
    import torch

    lengths = batch["token_ids"].value_lengths().to_numpy()
    out = {name: torch.from_numpy(writable(batch[name].flatten())) for name in LISTS}
    out |= {name: torch.from_numpy(writable(batch[name])) for name in SCALARS}
    out["position_ids"] = positions(lengths)
    out["cu_seqlens"] = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    if "routed_experts" in batch.schema.names:
        column = batch["routed_experts"]
        out["routed_experts"] = [torch.frombuffer(column[row].as_buffer(), dtype=torch.uint8) for row in range(len(column))]
    return out


def writable(array):
    # torch warns of read-only memory once; nobody writes to it here
    return array.to_numpy(zero_copy_only=False)


def positions(lengths):
    import torch

    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return torch.from_numpy((np.arange(lengths.sum()) - starts).astype(np.int32))


def rebatched(source, sizes):
    """Batches of any size as micro-batches of given sizes."""
    waiting = []
    have = 0
    sizes = iter(sizes)
    size = next(sizes, None)
    for batch in source:
        waiting.append(batch)
        have += batch.num_rows
        while size is not None and have >= size:
            rows = pa.Table.from_batches(waiting)
            yield rows.slice(0, size).combine_chunks().to_batches()[0]
            waiting = rows.slice(size).to_batches()
            have -= size
            size = next(sizes, None)


def parquet(target, sizes, workers):
    import pyarrow.parquet as pq
    import torch

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            # one worker reads, whatever their number: rows must come in order
            info = torch.utils.data.get_worker_info()
            if info is not None and info.id > 0:
                return
            file = pq.ParquetFile(target, memory_map=True)
            for batch in rebatched(file.iter_batches(batch_size=64), sizes):
                yield packed(batch)

    return torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=workers)


def lance_reader(target, sizes, _workers):
    import lance

    dataset = lance.dataset(target)
    return (packed(batch) for batch in rebatched(dataset.to_batches(batch_size=64), sizes))


def mds(target, sizes, workers):
    import torch
    from streaming import StreamingDataset

    def collate(samples):
        lengths = np.array([len(sample["token_ids"]) for sample in samples])
        out = {name: torch.from_numpy(np.concatenate([sample[name] for sample in samples])) for name in LISTS}
        out |= {name: torch.tensor([sample[name] for sample in samples], dtype=torch.float64) for name in SCALARS}
        out["position_ids"] = positions(lengths)
        out["cu_seqlens"] = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        if "routed_experts" in samples[0]:
            out["routed_experts"] = [torch.frombuffer(sample["routed_experts"], dtype=torch.uint8) for sample in samples]
        return out

    size = round(sum(sizes) / len(sizes))
    dataset = StreamingDataset(local=target, shuffle=False, batch_size=size)
    return torch.utils.data.DataLoader(dataset, batch_size=size, num_workers=workers, collate_fn=collate)


def read(kind, target, workers):
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(os.cpu_count())
    with open(target + ".sizes.json") as file:
        sizes = json.load(file)
    # importing is not reading
    importlib.import_module({"parquet": "pyarrow.parquet", "lance": "lance", "mds": "streaming"}[kind])
    make = {"parquet": parquet, "lance": lance_reader, "mds": mds}[kind]
    start, cpu = time.perf_counter(), time.process_time()
    samples = tokens = trained = experts = 0
    checksum = weighted = 0.0
    for batch in make(target, sizes, workers):
        samples += len(batch["advantage"])
        tokens += len(batch["token_ids"])
        experts += sum(len(e) for e in batch.get("routed_experts", []))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    for batch in make(target, sizes, 0):
        trained += int(batch["loss_mask"].sum())
        checksum += float(batch["token_ids"].to(torch.int64).sum())
        lengths = torch.diff(batch["cu_seqlens"]).to(torch.int64)
        per_token = torch.repeat_interleave(batch["loss_weight"], lengths)
        weighted += float((batch["logprobs"].double() * batch["loss_mask"] * per_token).sum())
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": cpu,
                "samples": samples,
                "tokens": tokens,
                "trained": trained,
                "token_id_sum": checksum,
                "weighted_loss_sum": weighted,
                "expert_bytes": experts,
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:5])
        print("{}")
    else:
        read(sys.argv[2], sys.argv[3], int(sys.argv[4]))
