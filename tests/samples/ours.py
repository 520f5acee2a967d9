"""Makes ours.jsonl: batches of rollouts with settings, and the samples that must come of them.

A second implementation of docs/training-semantics.md, token by token and in loops, that shares nothing with the SQL.
`python3 tests/samples/ours.py --check FILE` compares it with the expectations of a file; without arguments it writes
ours.jsonl beside itself.
"""

import json
import math
import random
import sys
from pathlib import Path

REAL = {"", "-1", "unknown", "none"}
GROUPED = {"grpo", "gspo", "rloo", "dr_grpo", "reinforce_plus_plus_baseline"}
DEFAULT_AGGREGATION = {"grpo": "prompt_mean", "reinforce_plus_plus_baseline": "prompt_mean", "dr_grpo": "constant"}


def is_real(version):
    return version is not None and version.strip().lower() not in REAL


def segment_numbers(segment, settings):
    """Semantics 4.3: cap at the tail, version masking, response."""
    cap = settings.get("max_segment_tokens") or len(segment["tokens"])
    mask = segment["full_loss_mask"][:cap]
    versions = (segment.get("full_versions") or [None] * len(segment["tokens"]))[:cap]
    trained = [v for m, v in zip(mask, versions) if m == 1 and is_real(v)]
    training = mask
    if segment["extra_info"].get("mask_nonlast_version_tokens") and len(set(trained)) > 1:
        training = [1 if m == 1 and v == trained[-1] else 0 for m, v in zip(mask, versions)]
    start = mask.index(1) if 1 in mask else len(mask)
    return {
        "segment_index": segment["segment_index"],
        "n_tokens": len(mask),
        "response_length": len(mask) - start,
        "mask_sum": sum(training),
        "truncated": int(segment["finish_reason"] == "length"),
        "last_version": trained[-1] if trained else None,
        "versions": set(trained),
    }


def observed_versions(trajectories):
    order = []
    for trajectory in trajectories:
        for segment in trajectory["segments"]:
            for version in segment.get("full_versions") or []:
                if is_real(version) and version not in order:
                    order.append(version)
    return order


def kept_trajectories(trajectories, settings):
    """Who is live and graded, and then which groups stay whole."""
    order = observed_versions(trajectories)
    keep = settings.get("staleness_keep_versions")
    cutoff = max(0, len(order) - keep) if keep else 0
    candidates, broken_groups, stale_groups = [], set(), set()
    for trajectory in trajectories:
        segments = sorted((segment_numbers(s, settings) for s in trajectory["segments"]),
                          key=lambda s: s["segment_index"])
        reward = trajectory["reward"]
        if reward is None and settings.get("null_reward") == "zero":
            reward = 0.0
        span = len(set().union(*(s["versions"] for s in segments)))
        too_wide = settings.get("max_version_span") is not None and span > settings["max_version_span"]
        if trajectory["status"] in ("aborted", "failed") or reward is None or too_wide:
            broken_groups.add(trajectory["group_id"])
            continue
        last = segments[-1]["last_version"]
        if last is not None and order.index(last) < cutoff:
            stale_groups.add(trajectory["group_id"])
        candidates.append({**trajectory, "reward": reward, "segments": segments})
    out = stale_groups | (broken_groups if settings.get("whole_groups_only") else set())
    return [c for c in candidates if c["group_id"] not in out]


def advantage(estimator, settings, reward, rewards):
    if estimator not in GROUPED or settings.get("rewards_normalization") is False:
        return reward
    mean = math.fsum(rewards) / len(rewards)
    if estimator == "rloo":
        others = len(rewards) - 1
        return reward - (math.fsum(rewards) - reward) / others if others else 0.0
    centred = reward - mean
    if estimator in ("grpo", "gspo") and settings.get("grpo_std_normalization", True):
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
        return centred / std if std > 1e-6 else centred
    return centred


def samples(trajectories, settings):
    estimator = settings.get("estimator", "grpo")
    aggregation = settings.get("loss_aggregation") or DEFAULT_AGGREGATION.get(estimator, "trajectory_mean")
    kept = kept_trajectories(trajectories, settings)
    rows = []
    for trajectory in kept:
        rewards = [t["reward"] for t in kept if t["group_id"] == trajectory["group_id"]]
        value = advantage(estimator, settings, trajectory["reward"], rewards)
        anchor = max(s["segment_index"] for s in trajectory["segments"])
        for segment in trajectory["segments"]:
            rows.append({
                "trajectory_id": trajectory["trajectory_id"],
                "segment_index": segment["segment_index"],
                "n_tokens": segment["n_tokens"],
                "response_length": segment["response_length"],
                "mask_sum": segment["mask_sum"],
                "raw_reward": trajectory["reward"] if segment["segment_index"] == anchor else 0.0,
                "advantage": value,
                "instance": trajectory["instance_id"],
                "truncated": segment["truncated"],
            })
    size = settings.get("global_batch_size") or 1

    def total(same):
        return sum(r["mask_sum"] for r in rows if same(r))

    for row in rows:
        if aggregation == "prompt_mean":
            prompts = len({r["instance"] for r in rows})
            row["denominator"] = total(lambda r: r["instance"] == row["instance"]) * prompts / size
        elif aggregation == "trajectory_mean":
            row["denominator"] = float(total(lambda r: r["trajectory_id"] == row["trajectory_id"]))
        elif aggregation == "sequence_mean":
            row["denominator"] = row["mask_sum"] * len(rows) / size
        elif aggregation == "token_mean":
            row["denominator"] = total(lambda r: True) / size
        else:
            c = aggregation.partition(":")[2] or settings["max_segment_tokens"]
            row["denominator"] = float(c)
    for row in rows:
        del row["instance"]
    return sorted(rows, key=lambda r: (r["trajectory_id"], r["segment_index"]))


def segment(rng, index, count, version, several):
    length = rng.randint(2, 40)
    mask = [0] * length
    for i in range(rng.randint(0, length - 1), length):
        mask[i] = int(rng.random() < 0.8)
    versions = []
    for _ in range(length):
        if several and rng.random() < 0.15:
            version += 1
        versions.append(rng.choice(["unknown", "-1"]) if rng.random() < 0.1 else str(version))
    return {
        "uid": f"s{index}-{rng.random():.12f}", "segment_index": index, "segment_count": count,
        "tokens": [rng.randrange(150000) for _ in range(length)],
        "full_loss_mask": mask,
        "full_logprobs": [round(-3 * rng.random(), 5) if m else 0.0 for m in mask],
        "full_versions": versions if rng.random() < 0.8 else None,
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "finish_reason": rng.choice(["stop", "stop", "length", "tool_calls"]),
        "extra_info": {"mask_nonlast_version_tokens": rng.random() < 0.4},
    }


def batch(rng, name, settings, prompts):
    """`prompts` instances, each with one or two groups of uneven size; rewards may be missing, equal, or dead."""
    trajectories = []
    for prompt in range(prompts):
        for group in range(rng.randint(1, 2)):
            same = rng.random() < 0.2
            version = rng.randint(1, 4)
            for member in range(rng.randint(1, 6)):
                status = rng.choices(["completed", "truncated", "aborted", "failed"], [8, 1, 1, 1])[0]
                count = rng.randint(1, 3)
                reward = 0.5 if same else round(rng.gauss(0, 1), 4)
                if status in ("aborted", "failed") or rng.random() < 0.15:
                    reward = None
                segments = [segment(rng, i, count, version, rng.random() < 0.3) for i in range(count)]
                rng.shuffle(segments)
                trajectories.append({
                    "trajectory_id": f"{name}-{prompt}-{group}-{member}", "instance_id": f"{name}-i{prompt}",
                    "group_id": f"{name}-g{prompt}-{group}", "reward": reward, "status": status,
                    "segments": segments,
                })
    return {"settings": settings, "trajectories": trajectories, "expected": samples(trajectories, settings)}


SETTINGS = [
    {"estimator": "grpo", "global_batch_size": 8},
    {"estimator": "grpo", "null_reward": "zero", "global_batch_size": 16, "max_segment_tokens": 24},
    {"estimator": "grpo", "whole_groups_only": True},
    {"estimator": "grpo", "grpo_std_normalization": False, "loss_aggregation": "token_mean", "global_batch_size": 4},
    {"estimator": "grpo", "rewards_normalization": False, "loss_aggregation": "sequence_mean", "global_batch_size": 6},
    {"estimator": "rloo", "global_batch_size": 8},
    {"estimator": "rloo", "null_reward": "zero", "loss_aggregation": "prompt_mean"},
    {"estimator": "dr_grpo", "max_segment_tokens": 32},
    {"estimator": "dr_grpo", "loss_aggregation": "constant:4096", "global_batch_size": 8},
    {"estimator": "reinforce", "loss_aggregation": "trajectory_mean"},
    {"estimator": "ppo", "null_reward": "zero", "whole_groups_only": True},
    {"estimator": "gspo", "staleness_keep_versions": 3, "global_batch_size": 8},
    {"estimator": "grpo", "staleness_keep_versions": 1, "max_segment_tokens": 20},
    {"estimator": "reinforce_plus_plus_baseline", "max_version_span": 1, "global_batch_size": 8},
    {"estimator": "gspo", "max_version_span": 2, "whole_groups_only": True, "staleness_keep_versions": 4},
]


def check(path):
    for number, line in enumerate(Path(path).read_text().splitlines()):
        case = json.loads(line)
        found = samples(case["trajectories"], case["settings"])
        expected = sorted(case["expected"], key=lambda r: (r["trajectory_id"], r["segment_index"]))
        assert len(found) == len(expected), (number, len(found), len(expected))
        for a, b in zip(found, expected):
            for key, value in b.items():
                same = a[key] == value if isinstance(value, str) else abs(a[key] - value) <= 1e-9
                assert same, (number, key, a, b)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(sys.argv[2])
    else:
        rng = random.Random(7)
        lines = [batch(rng, f"o{i}", settings, rng.randint(1, 4)) for i, settings in enumerate(SETTINGS)]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        Path(__file__).with_name("ours.jsonl").write_text(text)
