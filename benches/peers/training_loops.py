"""Rollouts to micro-batches as RL frameworks do it: loops over Python lists, or the same with NumPy arrays.

    training_loops.py python ROLLOUTS.jsonl SETTINGS     lists, as they come out of JSON
    training_loops.py numpy  ROLLOUTS_FOLDER SETTINGS    arrays, out of Parquet

SETTINGS is a JSON object: max_segment_tokens, global_batch_size, max_tokens_per_micro_batch. The rules are those of
docs/training-semantics.md: GRPO with the population deviation, advantages broadcast to all segments, prompt_mean.
Prints one JSON object: seconds of reading and of the loops, and numbers to compare with other implementations.
"""

import glob
import json
import sys
import time


# ---- lists --------------------------------------------------------------------------------------------------------


def read_lists(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def samples_of_lists(trajectories, cap):
    """Segments to samples: the cap at the tail, the response from the first trained token on."""
    samples = []
    for trajectory in trajectories:
        if trajectory.get("status") in ("aborted", "failed") or trajectory.get("reward") is None:
            continue
        segments = sorted(trajectory["segments"], key=lambda segment: segment["segment_index"])
        for segment in segments:
            tokens, mask = segment["tokens"], segment["full_loss_mask"]
            logprobs = segment["full_logprobs"]
            if not len(tokens) == len(mask) == len(logprobs):
                raise ValueError(f"{trajectory['trajectory_id']}: lists of different lengths")
            for value in mask:
                if value not in (0, 1):
                    raise ValueError(f"{trajectory['trajectory_id']}: mask of {value}")
            logprobs = [float(value) for value in logprobs]
            if cap is not None and len(tokens) > cap:
                tokens, mask, logprobs = tokens[:cap], mask[:cap], logprobs[:cap]
            start = len(tokens)
            for position, value in enumerate(mask):
                if value == 1:
                    start = position
                    break
            samples.append(
                {
                    "trajectory_id": trajectory["trajectory_id"],
                    "instance_id": trajectory["instance_id"],
                    "group_id": trajectory.get("group_id") or trajectory["instance_id"],
                    "segment_index": segment["segment_index"],
                    "raw_reward": trajectory["reward"] if segment is segments[-1] else 0.0,
                    "tokens": tokens,
                    "loss_mask": mask,
                    "logprobs": logprobs,
                    "response_start": start,
                    "mask_sum": sum(mask),
                    "truncated": segment.get("finish_reason") == "length",
                }
            )
    return samples


def advantages(samples):
    """Rewards of the anchors, normalised within their group, broadcast to all segments."""
    anchors = {}
    for sample in samples:
        known = anchors.get(sample["trajectory_id"])
        if known is None or sample["segment_index"] > known["segment_index"]:
            anchors[sample["trajectory_id"]] = sample
    groups = {}
    for anchor in anchors.values():
        groups.setdefault(anchor["group_id"], []).append(anchor)
    value = {}
    for members in groups.values():
        mean = sum(member["raw_reward"] for member in members) / len(members)
        centred = [member["raw_reward"] - mean for member in members]
        deviation = (sum(x * x for x in centred) / len(centred)) ** 0.5
        for member, x in zip(members, centred):
            value[member["trajectory_id"]] = x / deviation if deviation > 1e-6 else x
    for sample in samples:
        sample["advantage"] = value[sample["trajectory_id"]]


def train_steps(samples, global_batch_size):
    """Whole groups in order, until the next one would exceed the batch."""
    groups = {}
    for sample in samples:
        groups.setdefault(sample["group_id"], []).append(sample)
    steps, open_step, n = [], [], 0
    for members in groups.values():
        size = len({member["trajectory_id"] for member in members})
        if open_step and n + size > global_batch_size:
            steps.append(open_step)
            open_step, n = [], 0
        open_step = open_step + members
        n += size
    if open_step:
        steps.append(open_step)
    return steps


def loss_weights(step):
    """The mean over prompts of the mean over a prompt's tokens."""
    mask_sums = {}
    for sample in step:
        mask_sums[sample["instance_id"]] = mask_sums.get(sample["instance_id"], 0) + sample["mask_sum"]
    live = [instance for instance, total in mask_sums.items() if total > 0]
    for sample in step:
        total = mask_sums[sample["instance_id"]]
        sample["loss_weight"] = 1.0 / (len(live) * total) if total > 0 else 0.0


def packs(step, max_tokens):
    """First fit, in order."""
    bins = []
    for sample in step:
        for one in bins:
            if one["n_tokens"] + len(sample["tokens"]) <= max_tokens:
                break
        else:
            one = {"n_tokens": 0, "samples": []}
            bins.append(one)
        one["n_tokens"] += len(sample["tokens"])
        one["samples"].append(sample)
    return [one["samples"] for one in bins]


def batch_of_lists(samples):
    """A micro-batch laid end to end."""
    batch = {"token_ids": [], "position_ids": [], "loss_mask": [], "logprobs": [], "advantages": [], "cu_seqlens": [0]}
    for sample in samples:
        n = len(sample["tokens"])
        batch["token_ids"].extend(sample["tokens"])
        batch["position_ids"].extend(range(n))
        batch["loss_mask"].extend(sample["loss_mask"])
        batch["logprobs"].extend(sample["logprobs"])
        batch["advantages"].extend([sample["advantage"]] * n)
        batch["cu_seqlens"].append(batch["cu_seqlens"][-1] + n)
    batch["loss_weight"] = [sample["loss_weight"] for sample in samples]
    return batch


# ---- arrays -------------------------------------------------------------------------------------------------------


def read_arrays(folder):
    import pyarrow.parquet as pq

    wanted = [
        "trajectory_id", "instance_id", "group_id", "status", "reward", "segment_index", "finish_reason",
        "tokens", "full_loss_mask", "full_logprobs",
    ]
    tables = [pq.read_table(path, columns=wanted) for path in sorted(glob.glob(f"{folder}/**/*.parquet", recursive=True))]
    rows = []
    for table in tables:
        for batch in table.to_batches():
            scalars = batch.select(wanted[:7]).to_pylist()
            lists = {}
            for name in wanted[7:]:
                column = batch[name]
                values, offsets = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
                lists[name] = [values[offsets[i] : offsets[i + 1]] for i in range(len(column))]
            for i, row in enumerate(scalars):
                rows.append(row | {name: values[i] for name, values in lists.items()})
    return rows


def samples_of_arrays(rows, cap):
    import numpy as np

    by_trajectory = {}
    for row in rows:
        if row["status"] in ("aborted", "failed") or row["reward"] is None:
            continue
        by_trajectory.setdefault(row["trajectory_id"], []).append(row)
    samples = []
    for trajectory_id, segments in by_trajectory.items():
        segments.sort(key=lambda segment: segment["segment_index"])
        for segment in segments:
            tokens, mask, logprobs = segment["tokens"], segment["full_loss_mask"], segment["full_logprobs"]
            if not len(tokens) == len(mask) == len(logprobs):
                raise ValueError(f"{trajectory_id}: lists of different lengths")
            if ((mask != 0) & (mask != 1)).any():
                raise ValueError(f"{trajectory_id}: a mask that is neither 0 nor 1")
            if cap is not None:
                tokens, mask, logprobs = tokens[:cap], mask[:cap], logprobs[:cap]
            trained = np.flatnonzero(mask)
            samples.append(
                {
                    "trajectory_id": trajectory_id,
                    "instance_id": segment["instance_id"],
                    "group_id": segment["group_id"] or segment["instance_id"],
                    "segment_index": segment["segment_index"],
                    "raw_reward": segment["reward"] if segment is segments[-1] else 0.0,
                    "tokens": tokens,
                    "loss_mask": mask,
                    "logprobs": logprobs,
                    "response_start": int(trained[0]) if len(trained) else len(tokens),
                    "mask_sum": len(trained),
                    "truncated": segment["finish_reason"] == "length",
                }
            )
    return samples


def batch_of_arrays(samples):
    import numpy as np

    lengths = np.array([len(sample["tokens"]) for sample in samples])
    ends = np.cumsum(lengths)
    return {
        "token_ids": np.concatenate([sample["tokens"] for sample in samples]),
        "position_ids": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        "loss_mask": np.concatenate([sample["loss_mask"] for sample in samples]),
        "logprobs": np.concatenate([sample["logprobs"] for sample in samples]),
        "advantages": np.repeat([sample["advantage"] for sample in samples], lengths),
        "cu_seqlens": np.concatenate([[0], ends]),
        "loss_weight": np.array([sample["loss_weight"] for sample in samples]),
    }


# ---- both ---------------------------------------------------------------------------------------------------------


def weighted_sum(batch):
    """The loss of the micro-batch, with log-probs for losses."""
    import numpy as np

    lengths = np.diff(np.asarray(batch["cu_seqlens"]))
    weights = np.repeat(np.asarray(batch["loss_weight"]), lengths)
    terms = np.asarray(batch["logprobs"], dtype=np.float64) * np.asarray(batch["loss_mask"]) * weights
    return float((terms * np.asarray(batch["advantages"])).sum())


def main():
    kind, source, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    lists = kind == "python"
    if not lists:
        # importing is not reading
        import numpy  # noqa: F401
        import pyarrow.parquet  # noqa: F401
    begin = time.perf_counter()
    records = (read_lists if lists else read_arrays)(source)
    loaded = time.perf_counter()
    samples = (samples_of_lists if lists else samples_of_arrays)(records, settings.get("max_segment_tokens"))
    advantages(samples)
    made = batch_of_lists if lists else batch_of_arrays
    batches = []
    for step in train_steps(samples, settings["global_batch_size"]):
        loss_weights(step)
        batches.extend(made(pack) for pack in packs(step, settings["max_tokens_per_micro_batch"]))
    done = time.perf_counter()
    print(
        json.dumps(
            {
                "read_seconds": loaded - begin,
                "loop_seconds": done - loaded,
                "samples": len(samples),
                "micro_batches": len(batches),
                "tokens": sum(len(batch["token_ids"]) for batch in batches),
                "trained": sum(sample["mask_sum"] for sample in samples),
                "token_id_sum": sum(int(sum(map(int, batch["token_ids"]))) if lists else int(batch["token_ids"].astype("int64").sum()) for batch in batches),
                "abs_advantage_sum": sum(abs(sample["advantage"]) for sample in samples),
                "weighted_loss_sum": sum(weighted_sum(batch) for batch in batches),
            }
        )
    )


if __name__ == "__main__":
    main()
