"""One train step as people write it: transformers, PyTorch eager, fused AdamW, the same packed row.

    python train_step.py MODEL ROW.json THREADS STEPS [logprobs]

Prints seconds of each step and, last, the process's peak resident memory in bytes. With `logprobs` there is no model:
only log-probs of the row from its hidden states, the naive way, forward and back.
"""

import json
import os
import resource
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(folder, row, steps):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    model.train()
    tokens = torch.tensor(row["token_ids"])[None]
    positions = torch.cat([torch.arange(n) for n in row["lengths"]])[None]
    scored = positions[0, 1:] > 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    for _ in range(steps):
        start = time.perf_counter()
        # positions that begin anew are a packed row to transformers: no attention across
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits[0, :-1]
        logprobs = torch.log_softmax(logits.float(), dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
        loss = -(logprobs * scored).sum() / scored.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(time.perf_counter() - start, loss.item())


def logprobs_only(row, steps):
    hidden = torch.randn(len(row["token_ids"]), row["hidden_size"], requires_grad=True)
    head = torch.nn.Linear(row["hidden_size"], row["vocab_size"], bias=False)
    tokens = torch.tensor(row["token_ids"])
    for _ in range(steps):
        start = time.perf_counter()
        logprobs = torch.log_softmax(head(hidden)[:-1], dim=-1).gather(1, tokens[1:, None])[:, 0]
        (-logprobs.mean()).backward()
        print(time.perf_counter() - start, 0.0)


def main():
    folder, row, threads, steps = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    if sys.argv[5:] == ["logprobs"]:
        logprobs_only(row, steps)
    else:
        train(folder, row, steps)
    print(peak_bytes())


main()
