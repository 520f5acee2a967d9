"""TransferQueue, simple storage: puts TRAJECTORIES rows of TOKENS tokens with LAYERS x TOPK router choices.

Prints one JSON object: seconds of the puts alone, and the peak memory of all its processes together.
"""

import json
import os
import sys
import threading
import time

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict

ROWS_A_PUT = 8


def resident(pids):
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm") as statm:
                fields = statm.read().split()
                # Shared pages (libraries, the object store's mapping) would be counted once a process.
                total += (int(fields[1]) - int(fields[2])) * page
        except (OSError, IndexError):
            pass
    return total


def descendants(root):
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:
                    parents[int(name)] = int(stat.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError, ValueError):
                pass
    found, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        grown = bool(more)
        found |= more
    return found


class Watch(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0

    def run(self):
        while True:
            self.peak = max(self.peak, resident(descendants(os.getpid())))
            time.sleep(0.1)


def main():
    trajectories, tokens, layers, topk = (int(arg) for arg in sys.argv[1:5])
    watch = Watch()
    watch.start()
    # Ray counts processors, and puts off actors for which it has none left: on two cores TransferQueue's own would wait
    # for each other for ever
    ray.init(num_cpus=16, include_dashboard=False)
    tq.init()
    time.sleep(2)
    before = watch.peak
    fields = {
        "token_ids": torch.randint(0, 150_000, (ROWS_A_PUT, tokens), dtype=torch.int32),
        "logprobs": torch.rand(ROWS_A_PUT, tokens, dtype=torch.float32),
        "loss_mask": torch.ones(ROWS_A_PUT, tokens, dtype=torch.uint8),
        "routed_experts": torch.randint(0, 128, (ROWS_A_PUT, tokens - 1, layers, topk), dtype=torch.uint8),
    }
    start = time.perf_counter()
    for first in range(0, trajectories, ROWS_A_PUT):
        rows = min(ROWS_A_PUT, trajectories - first)
        batch = TensorDict({name: tensor[:rows] for name, tensor in fields.items()}, batch_size=[rows])
        tq.kv_batch_put(keys=[f"t{first + row}" for row in range(rows)], partition_id="bench", fields=batch)
    seconds = time.perf_counter() - start
    time.sleep(0.5)
    print(json.dumps({"seconds": seconds, "peak_rss_bytes": watch.peak, "before_rss_bytes": before}), flush=True)
    tq.close()


main()
