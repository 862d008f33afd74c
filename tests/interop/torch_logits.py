"""torch_logits.py FOLDER…: what transformers computes from FOLDER/model.safetensors, in F32, for FOLDER/tokens.npy, into
FOLDER/logits.npy. For checks in environments without torch."""

import pathlib
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file


def main():
    for folder in map(pathlib.Path, sys.argv[1:]):
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        lacking, unknown = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        if unknown or set(lacking) - {"lm_head.weight"}:
            raise ValueError(f"{folder}: {unknown[:3]} unknown, {lacking[:3]} missing")
        model.tie_weights()
        with torch.no_grad():
            logits = model(torch.from_numpy(np.load(folder / "tokens.npy")), use_cache=False).logits
        np.save(folder / "logits.npy", logits.float().numpy())


if __name__ == "__main__":
    main()
