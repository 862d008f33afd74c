"""The tokens that a recording runs through the model. For scripts/collect."""
import hashlib
import json
import sys
import time


def documents(paths, tokenizer):
    for path in paths:
        if path.suffix not in (".jsonl", ".json"):
            yield path.read_text()
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            entry = json.loads(line)
            if "messages" in entry:
                yield tokenizer.apply_chat_template(entry["messages"], tokenize=False)
            elif "text" in entry:
                yield entry["text"]
            else:
                sys.exit(f"collect: {path}:{number}: neither \"text\" nor \"messages\"")


def sequences(arguments, tokenizer):
    """Lists of --length tokens (the last may be shorter), --tokens in all; documents follow each other."""
    left, waiting = arguments.tokens, []
    for text in documents(arguments.text, tokenizer):
        waiting += tokenizer(text)["input_ids"]
        while len(waiting) >= arguments.length and left > 0:
            yield waiting[:min(arguments.length, left)]
            left -= arguments.length
            waiting = waiting[arguments.length:]
        if left <= 0:
            return
    if waiting and left > 0:
        yield waiting[:left]


def key(arguments, config, *more):
    """What makes a recording another one."""
    texts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in arguments.text]
    return repr((config, texts, arguments.length, arguments.dtype, arguments.kv_cache, arguments.clip if arguments.gram else None, *more))


def run(arguments, tokenizer, done, forward, keep, talks):
    """`forward(tokens)` for every sequence after the first `done` tokens, and `keep(seen)` every --save-every tokens. Returns all tokens
    that were seen, with those of an earlier run."""
    seen, kept, start = 0, done, time.monotonic()
    for tokens in sequences(arguments, tokenizer):
        seen += len(tokens)
        if seen <= done:
            continue
        forward(tokens)
        if arguments.save_every and seen - kept >= arguments.save_every:
            keep(seen)
            kept = seen
        if talks:
            rate = (seen - done) / max(1e-9, time.monotonic() - start)
            left = (arguments.tokens - seen) / rate
            print(f"\rcollect: {seen} of {arguments.tokens} tokens, {rate:.0f}/s, {left:.0f} s left ", end="", file=sys.stderr, flush=True)
    if talks:
        print(file=sys.stderr)
    if seen == 0:
        sys.exit("collect: the text has no tokens")
    if seen < arguments.tokens and talks:
        print(f"collect: the text has only {seen} tokens, {arguments.tokens} were wanted", file=sys.stderr)
    return seen
