"""Text for scripts/collect, of a tokenizer whose words are its tokens' numbers."""

import json

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
