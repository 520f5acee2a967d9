"""A rank of PyTorch in a group of ours: what Rendezvous::join does, by hand."""

import datetime
import json
import os
import time

import torch
import torch.distributed as dist

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
timeout = datetime.timedelta(seconds=60)
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
whole = dist.TCPStore(host, port, None, rank == 0, timeout, wait_for_workers=False)
store = dist.PrefixStore("attempt_0", whole)
store.set(f"fingerprint/{rank}", json.dumps([["version", "1"]]))
for other in range(world_size):
    store.get(f"fingerprint/{other}")
group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, world_size, timeout)
group.barrier().wait()
store.set(f"clock_ms/{rank}", str(int(time.time() * 1000)))

numbers = torch.tensor([10.0, 20.0])
group.allreduce([numbers]).wait()
copied = torch.tensor([42])
group.broadcast(copied, 0).wait()
print(f"said: {numbers.tolist()} {copied.item()}", flush=True)
store.set(f"left/{rank}", "")
for other in range(world_size):
    store.get(f"left/{other}")
