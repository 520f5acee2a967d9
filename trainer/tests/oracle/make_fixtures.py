"""Tiny random models of each family, and what transformers and torch make of them: the numbers that the tests compare with.

    make oracle            # into trainer/tests/fixtures, in a Python environment outside the clone

A folder a case: config.json and model.safetensors as transformers saves them, and expected.safetensors:

    token_ids [T], lengths [S]      the segments; each is run alone here, and packed into one row by the tests
    loss_weight [T]                 what a token's log-prob is multiplied with in the loss
    logits [T, vocab]
    logprobs, entropy [T]           0 for the first token of a segment
    routed.N [T, top_k]             experts of layer N
    gradient.NAME                   of the loss sum(-loss_weight * logprob) - ENTROPY_WEIGHT * sum(entropy)
    step5.NAME                      the weights after STEPS steps of AdamW on that loss
    grad_norms [STEPS]              before clipping
"""

import json
import os
import pathlib
import shutil
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import save_file

ENTROPY_WEIGHT = 0.05
STEPS = 5
# with the usual eps of 1e-8, a weight whose gradient is as small as its rounding error moves by a visible part of the
# learning rate, in either direction
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-5)
WEIGHT_DECAY = 0.1
GRAD_NORM_MAX = 1.0

SMALL = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16)

# name: family, seed, settings over SMALL
CASES = {
    "llama_tied": ("llama", 1, dict(tie_word_embeddings=True)),
    "llama_biases": ("llama", 2, dict(attention_bias=True, mlp_bias=True, num_key_value_heads=4)),
    "llama_rope3": ("llama", 3, dict(rope_parameters=LLAMA3_ROPE, num_key_value_heads=1, head_dim=16)),
    "qwen2": ("qwen2", 4, dict(num_key_value_heads=1)),
    "qwen2_tied": ("qwen2", 5, dict(tie_word_embeddings=True, vocab_size=80, rms_norm_eps=1e-5)),
    "qwen3": ("qwen3", 6, dict(head_dim=16)),
    "qwen3_tied": ("qwen3", 7, dict(head_dim=8, tie_word_embeddings=True, num_hidden_layers=3, attention_bias=True)),
    "qwen3_moe": ("qwen3_moe", 8, dict(head_dim=8, norm_topk_prob=True, **EXPERTS)),
    "qwen3_moe_raw": ("qwen3_moe", 9, dict(head_dim=8, norm_topk_prob=False, tie_word_embeddings=True, **EXPERTS)),
    "qwen3_moe_mixed": (
        "qwen3_moe",
        10,
        dict(head_dim=8, norm_topk_prob=True, mlp_only_layers=[0], **{**EXPERTS, "num_experts_per_tok": 3}),
    ),
}
SEGMENT_LENGTHS = [17, 1, 40, 2, 23]


def segments(vocab_size, generator):
    return [torch.randint(0, vocab_size, (n,), generator=generator) for n in SEGMENT_LENGTHS]


def run(model, parts, weights):
    """Each segment by itself: loss, logits, log-probs, entropies, experts by layer."""
    chosen = {}
    hooks = []
    for index, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "experts"):
            keep = lambda _, __, output, index=index: chosen.setdefault(index, []).append(output[2])
            hooks.append(layer.mlp.gate.register_forward_hook(keep))
    loss, logits, logprobs, entropies = 0.0, [], [], []
    for tokens, weight in zip(parts, weights):
        output = model(input_ids=tokens[None]).logits[0]
        log_all = torch.log_softmax(output[:-1].float(), dim=-1)
        logprob = log_all.gather(1, tokens[1:, None])[:, 0]
        entropy = -(log_all.exp() * log_all).sum(-1)
        loss = loss - (weight[1:] * logprob).sum() - ENTROPY_WEIGHT * entropy.sum()
        zero = torch.zeros(1)
        logits.append(output.detach())
        logprobs.append(torch.cat([zero, logprob.detach()]))
        entropies.append(torch.cat([zero, entropy.detach()]))
    for hook in hooks:
        hook.remove()
    routed = {layer: torch.cat([r.reshape(-1, r.shape[-1]) for r in rows]) for layer, rows in chosen.items()}
    return loss, torch.cat(logits), torch.cat(logprobs), torch.cat(entropies), routed


def stored(model, tensors):
    """Tensors by parameter name as they are by name in a file: experts one by one, each a tensor of its own."""
    out = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().float()
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            for expert, matrix in enumerate(tensor):
                gate, up = matrix.chunk(2, dim=0)
                out[f"{prefix}{expert}.gate_proj.weight"] = gate.contiguous().clone()
                out[f"{prefix}{expert}.up_proj.weight"] = up.contiguous().clone()
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            for expert, matrix in enumerate(tensor):
                out[f"{prefix}{expert}.down_proj.weight"] = matrix.contiguous().clone()
        else:
            out[name] = tensor.contiguous().clone()
    return out


def make(folder, family, seed, settings):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    config = transformers.CONFIG_MAPPING[family](**{**SMALL, **settings}, initializer_range=0.2)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # ones and zeros would hide a norm or bias that is left out
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.train()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    parts = segments(config.vocab_size, generator)
    weights = [torch.randn(len(p), generator=generator) / sum(SEGMENT_LENGTHS) for p in parts]
    loss, logits, logprobs, entropies, routed = run(model, parts, weights)
    loss.backward()
    named = dict(model.named_parameters())
    expected = {
        "token_ids": torch.cat(parts).int(),
        "lengths": torch.tensor(SEGMENT_LENGTHS, dtype=torch.int32),
        "loss_weight": torch.cat(weights),
        "logits": logits,
        "logprobs": logprobs,
        "entropy": entropies,
    }
    expected |= {f"routed.{layer}": ids.to(torch.int32) for layer, ids in routed.items()}
    expected |= {f"gradient.{n}": t for n, t in stored(model, {n: p.grad for n, p in named.items()}).items()}

    model.zero_grad()
    groups = [
        dict(params=[p for n, p in named.items() if p.dim() > 1], weight_decay=WEIGHT_DECAY),
        dict(params=[p for n, p in named.items() if p.dim() == 1], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, **ADAMW)
    norms = []
    for _ in range(STEPS):
        loss = run(model, parts, weights)[0]
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_NORM_MAX))
        optimizer.step()
        optimizer.zero_grad()
    expected["grad_norms"] = torch.stack(norms)
    expected |= {f"step5.{n}": t for n, t in stored(model, named).items()}
    save_file({n: t.contiguous() for n, t in expected.items()}, folder / "expected.safetensors")


def main():
    target = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    for name, (family, seed, settings) in CASES.items():
        folder = target / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder, family, seed, settings)
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: {size // 1024} KiB")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (target / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
