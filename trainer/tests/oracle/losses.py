"""Expected losses, gradients and metrics of trainer/tests/fixtures/losses.json, from PyTorch.

    python trainer/tests/oracle/losses.py        # needs torch and nothing else; made with 2.11.0

Written from the papers, not from the Rust code: one segment at a time, in plain tensors, gradients by autograd. Where a
paper gives a sequence form (GSPO), the sequence form is what is computed here, and the trainer's token form has to agree.
"""

import json
import math
import pathlib

import torch

torch.set_default_dtype(torch.float64)

OUT = pathlib.Path(__file__).parent.parent / "fixtures" / "losses.json"


def rollout(seed, lengths, spread):
    """Segments with the log-probs of everybody who has an opinion about their tokens."""
    generator = torch.Generator().manual_seed(seed)
    segments = []
    for length in lengths:
        def near(values, scale):
            return values + scale * torch.randn(length, generator=generator)

        sampled = -3.0 * torch.rand(length, generator=generator) - 0.05
        old = near(sampled, spread / 2)
        mask = torch.rand(length, generator=generator) < 0.8
        segments.append(
            dict(
                logprobs=sampled,
                old_logprobs=old,
                trainer_logprobs=near(old, spread),
                ref_logprobs=near(sampled, spread),
                entropy=2.0 * torch.rand(length, generator=generator),
                loss_mask=mask,
                advantage=float(torch.randn((), generator=generator)),
                loss_weight=float(torch.rand((), generator=generator) / length),
            )
        )
    return segments


def surrogate(ratio, advantage, low, high, dual):
    gain = torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)
    if dual is not None and advantage < 0:
        gain = torch.maximum(gain, torch.full_like(gain, dual * advantage))
    return -gain


def policy(settings, now, old, advantage):
    """The loss of each token of a segment, or of the whole segment spread over its tokens."""
    kind = settings["kind"]
    if kind == "cross_entropy":
        return -now
    if kind == "reinforce":
        return -advantage * now
    low, high = settings["clip_low"], settings["clip_high"]
    if kind == "ppo_clip":
        return surrogate(torch.exp(now - old), advantage, low, high, settings.get("dual_clip"))
    if kind == "cispo":
        weight = torch.clamp(torch.exp(now - old), 1 - low, 1 + high).detach()
        return -weight * advantage * now
    assert kind == "gspo"
    sequence = torch.exp((now - old).mean())
    return surrogate(sequence, advantage, low, high, None) * torch.ones_like(now)


def importance(correction, old, sampled):
    log = (old - sampled).detach()
    level = correction.get("level", "token")
    if level == "sequence":
        log = log.sum() * torch.ones_like(log)
    elif level == "geometric":
        log = log.mean() * torch.ones_like(log)
    ratio = torch.exp(log)
    outside = (ratio < correction["lower"]) | (ratio > correction["upper"])
    if correction["kind"] == "truncate":
        weight = torch.clamp(ratio, correction["lower"], correction["upper"])
    else:
        weight = torch.where(outside, torch.zeros_like(ratio), ratio)
    return weight, outside, ratio


def divergence(estimator, now, reference):
    ratio = torch.exp(reference - now)
    if estimator == "k1":
        return now - reference
    if estimator == "k2":
        return 0.5 * (now - reference) ** 2
    return ratio - 1 - torch.log(ratio)


def case(name, loss, correction=None, kl=None, seed=1, lengths=(5, 1, 9, 4), spread=0.4, over="old_logprobs"):
    segments = rollout(seed, lengths, spread)
    total, weights, ratios, outsides, kls, updates, mismatches = [], [], [], [], [], [], []
    leaves, entropies = [], []
    for s in segments:
        now = s["trainer_logprobs"].clone().requires_grad_()
        entropy = s["entropy"].clone().requires_grad_()
        leaves.append(now)
        entropies.append(entropy)
        m = s["loss_mask"]
        if not m.any():
            continue
        kept, old, sampled = now[m], s["old_logprobs"][m], s["logprobs"][m]
        per_token = policy(loss, kept, s[over][m], s["advantage"])
        if correction:
            weight, outside, ratio = importance(correction, old, sampled)
            ratios.append(ratio)
            per_token = per_token * weight
            weights.append(weight)
            outsides.append(outside.double())
        if kl:
            term = divergence(kl["estimator"], kept, s["ref_logprobs"][m])
            per_token = per_token + kl["coefficient"] * term
            kls.append(term.detach())
        if loss.get("entropy_coefficient"):
            per_token = per_token - loss["entropy_coefficient"] * entropy[m]
        total.append(s["loss_weight"] * per_token.sum())
        log = (kept - s[over][m]).detach()
        updates.append(torch.exp(log) - 1 - log)
        own = kept.detach() if over == "logprobs" else old
        log = own - sampled
        mismatches.append(torch.stack([-log, torch.exp(log) - 1 - log, torch.exp(log)]))
    total = torch.stack(total).sum()
    total.backward()
    expected = {"loss": total.item(), "trained_tokens": sum(int(s["loss_mask"].sum()) for s in segments)}
    if kls:
        expected["kl"] = torch.cat(kls).mean().item()
    if weights:
        expected["correction_ratio_mean"] = torch.cat(ratios).mean().item()
        expected["correction_ratio_max"] = torch.cat(ratios).max().item()
        expected["correction_mean"] = torch.cat(weights).mean().item()
        expected["correction_fraction"] = torch.cat(outsides).mean().item()
    if loss["kind"] in ("ppo_clip", "gspo", "cispo"):
        expected["update_kl"] = torch.cat(updates).mean().item()
    k1, k3, ratio = torch.cat(mismatches, dim=1)
    expected |= {"mismatch_k1": k1.mean().item(), "mismatch_k3": k3.mean().item()}
    expected |= {"mismatch_ratio_mean": ratio.mean().item(), "mismatch_ratio_max": ratio.max().item()}

    def flat(grads):
        return [x for g in grads for x in (g.grad if g.grad is not None else torch.zeros_like(g)).tolist()]

    listed = [{k: v.tolist() if torch.is_tensor(v) else v for k, v in s.items()} for s in segments]
    written = {k: v for k, v in loss.items()} | ({"old_logprobs": "rollout"} if over == "logprobs" else {})
    assert math.isfinite(expected["loss"])
    return {
        "name": name,
        "settings": {"loss": written, "correction": correction or {}, "kl": kl or {}},
        "segments": listed,
        "expected": expected,
        "gradient": flat(leaves),
        "entropy_gradient": flat(entropies),
    }


PPO = {"kind": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}
GSPO = {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.2}
CISPO = {"kind": "cispo", "clip_low": 0.5, "clip_high": 0.3}
REINFORCE = {"kind": "reinforce"}

CASES = [
    case("ppo_clip", PPO),
    case("ppo_clip far from the old policy", PPO, seed=2, spread=1.5),
    case("ppo_clip over the rollout", PPO, over="logprobs", seed=3),
    case("ppo_clip with dual clip", PPO | {"dual_clip": 1.5}, seed=4, spread=1.5),
    case("ppo_clip with everything", PPO | {"entropy_coefficient": 0.01},
         {"kind": "truncate", "level": "token", "lower": 0.0, "upper": 1.2}, {"estimator": "k3", "coefficient": 0.05}, seed=5),
    case("gspo", GSPO, seed=6),
    case("gspo far from the old policy", GSPO, seed=7, spread=1.5, lengths=(3, 6, 2, 12, 7, 5)),
    case("gspo masked by sequence", GSPO, {"kind": "mask", "level": "sequence", "lower": 0.5, "upper": 2.0}, seed=8),
    case("cispo", CISPO, seed=9),
    case("cispo over the rollout", CISPO, seed=10, over="logprobs", spread=1.0),
    case("reinforce", REINFORCE, seed=11),
    case("reinforce truncated by token", REINFORCE, {"kind": "truncate", "level": "token", "lower": 0.8, "upper": 1.1}, seed=12),
    case("reinforce masked by token", REINFORCE, {"kind": "mask", "level": "token", "lower": 0.8, "upper": 1.25}, seed=13),
    case("reinforce truncated by sequence", REINFORCE, {"kind": "truncate", "level": "sequence", "lower": 0.0, "upper": 2.0}, seed=14),
    case("reinforce masked by geometric mean", REINFORCE,
         {"kind": "mask", "level": "geometric", "lower": 0.9, "upper": 1.1}, seed=15),
    case("reinforce with k1", REINFORCE, None, {"estimator": "k1", "coefficient": 0.1}, seed=16),
    case("reinforce with k2", REINFORCE, None, {"estimator": "k2", "coefficient": 0.1}, seed=17),
    case("reinforce with k3", REINFORCE, None, {"estimator": "k3", "coefficient": 0.1}, seed=18),
    case("reinforce with entropy", REINFORCE | {"entropy_coefficient": 0.05}, seed=19),
    case("cross_entropy", {"kind": "cross_entropy"}, seed=20),
]

if __name__ == "__main__":
    rows = ",\n".join(json.dumps(c) for c in CASES)
    OUT.write_text(f"[\n{rows}\n]\n")
    print(f"{OUT}: {len(CASES)} cases, torch {torch.__version__}")
