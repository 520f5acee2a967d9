"""One train step as people write it: transformers, PyTorch eager, SDPA, fused AdamW, clipping.

    python train_step.py step MODEL STEPS packed|segments[+LOGPROBS]
    python train_step.py logprobs MODEL STEPS LOGPROBS

MODEL is a folder with config.json, model.safetensors and row.json. `packed` runs the row at once (transformers sees from
position_ids where segments begin, and makes a mask of blocks), `segments` one segment after the other, summing up
gradients. LOGPROBS is `cross_entropy` (the default), `log_softmax` or `logsumexp`. `logprobs` has no model: only
log-probs of a row from its hidden states, forward and back. Prints one line of JSON: seconds (by the
clock and of the processor) and loss of each step, and the process's peak resident memory. Threads are those of OMP_NUM_THREADS.
"""

import json
import os
import pathlib
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch


def peak_bytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def logprobs_of(logits, tokens, how):
    """Log-probs of tokens `[n]` from logits `[n, vocab]`."""
    if how == "cross_entropy":
        return -torch.nn.functional.cross_entropy(logits, tokens, reduction="none")
    if how == "log_softmax":
        return torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0]
    return logits.gather(1, tokens[:, None])[:, 0] - torch.logsumexp(logits, dim=-1)


def train(folder, row, steps, way):
    import transformers

    way, _, how = way.partition("+")
    how = how or "cross_entropy"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    model.train()
    tokens = torch.tensor(row["token_ids"])
    positions = torch.cat([torch.arange(n) for n in row["lengths"]])
    scored = positions[1:] > 0
    n_scored = int(scored.sum())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def packed():
        logits = model(input_ids=tokens[None], position_ids=positions[None], use_cache=False).logits[0, :-1]
        loss = -(logprobs_of(logits.float(), tokens[1:], how) * scored).sum() / n_scored
        loss.backward()
        return loss.item()

    def by_segments():
        total = 0.0
        for part in tokens.split(row["lengths"]):
            logits = model(input_ids=part[None], use_cache=False).logits[0, :-1]
            loss = -logprobs_of(logits.float(), part[1:], how).sum() / n_scored
            loss.backward()
            total += loss.item()
        return total

    seconds, cpu_seconds, losses = [], [], []
    for _ in range(steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        loss = packed() if way == "packed" else by_segments()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
        losses.append(loss)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "losses": losses}


def logprobs_only(row, steps, how):
    hidden = torch.randn(len(row["token_ids"]), row["hidden_size"], requires_grad=True)
    head = torch.nn.Linear(row["hidden_size"], row["vocab_size"], bias=False)
    tokens = torch.tensor(row["token_ids"])
    seconds, cpu_seconds, losses = [], [], []
    for _ in range(steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        loss = -logprobs_of(head(hidden)[:-1], tokens[1:], how).mean()
        loss.backward()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
        losses.append(loss.item())
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "losses": losses}


def main():
    what, folder, steps, how = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    row = json.loads((folder / "row.json").read_text())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    found = train(folder, row, steps, how) if what == "step" else logprobs_only(row, steps, how)
    print(json.dumps({**found, "peak_bytes": peak_bytes()}))


main()
