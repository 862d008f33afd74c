"""Text for scripts/collect, of a tokenizer whose words are its tokens' numbers, and what it recorded."""

import json
import pathlib

import h5py
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def write_tokenizer(folder, vocabulary):
    words = {f"w{i}": i for i in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)


def write_text(folder, tokens):
    """The tokens, half of them in a.txt, half in b.jsonl."""
    half = len(tokens) // 2
    first, second = (" ".join(f"w{t}" for t in part) for part in (tokens[:half], tokens[half:]))
    (folder / "a.txt").write_text(first)
    (folder / "b.jsonl").write_text(json.dumps({"text": second}) + "\n")


def read_recorded(prefix):
    """Name -> (values by kind, tokens)."""
    if not pathlib.Path(f"{prefix}.h5").exists():
        found = torch.load(f"{prefix}.tp0.pt", weights_only=True)
        return {name: ({kind: values.pop(kind) for kind in ("absmean", "sqmean", "absmax")}, values["count"]) for name, values in found.items()}
    with h5py.File(f"{prefix}.h5") as file:
        return {("" if name == "lm_head" else "model.") + name: ({kind: torch.from_numpy(value[:]) for kind, value in group.items()},
                                                                  int(group.attrs["count"])) for name, group in file["inputs"].items()}


def differences(one, other, names, of_largest=("gram",)):
    """Largest relative difference of each kind, for those of_largest in ratio to the largest value; and what has other tokens or kinds."""
    found, wrong = {}, []
    for name in names:
        if one[name][1] != other[name][1] or one[name][0].keys() != other[name][0].keys():
            wrong.append(name)
            continue
        for kind, value in one[name][0].items():
            scale = value.abs().max() if kind in of_largest else value.abs().clamp_min(1e-12)
            found[kind] = max(found.get(kind, 0), float(((other[name][0][kind] - value).abs() / scale).max()))
    return found, wrong
