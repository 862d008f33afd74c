"""Records with vLLM, inside its own workers. For scripts/collect."""
import json
import os
import pathlib
import sys

from collecting import recorder, text

DRAFTERS = ("DFlashDraftModel", "DFlash2DraftModel")
SCRIPTS = pathlib.Path(__file__).resolve().parent.parent


def options_of(arguments, block):
    """Of vLLM's engine. A sequence at a time and in one piece, nothing kept of an earlier one and nothing compiled: then every module sees
    each token once, and those of a sequence together. `block`: of a drafter, the tokens that it sees at once; else 0."""
    longest = arguments.length + arguments.answer + 2 * block  # vLLM drafts only where a whole block still fits
    options = {"model": arguments.target or arguments.model, "dtype": arguments.dtype, "tensor_parallel_size": arguments.tensor_parallel,
               "max_model_len": longest, "max_num_batched_tokens": longest, "max_num_seqs": 1, "enable_prefix_caching": False,
               "enforce_eager": True, "skip_tokenizer_init": True, "disable_log_stats": True,
               "worker_extension_cls": "collecting.vllm_worker.RecordingWorker"}
    if block:
        options["speculative_config"] = {"method": "dflash", "model": arguments.model, "num_speculative_tokens": block - 1}
    for given in arguments.vllm_option:
        name, found, value = given.partition("=")
        if not found or name in options:
            sys.exit(f"collect: --vllm-option {given}: NAME=VALUE is wanted, and of an option that collect does not set itself")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def block_of(arguments):
    """Tokens of a drafter's block: the last one and those to be guessed. 0 where MODEL is recorded itself."""
    if arguments.target is None:
        return 0
    config = json.loads(pathlib.Path(arguments.model, "config.json").read_text())
    kinds = config.get("architectures") or ["of no kind that its config.json names"]
    if kinds[0] not in DRAFTERS:
        sys.exit(f"collect: --target: {arguments.model} is {kinds[0]}; of drafters, {' and '.join(DRAFTERS)} are recorded")
    size = config.get("dflash_config", {}).get("block_size") or config.get("block_size")
    if not (arguments.draft_tokens or size):
        sys.exit(f"collect: {arguments.model}/config.json has no block_size; say --draft-tokens")
    return arguments.draft_tokens + 1 if arguments.draft_tokens else size


def collect(arguments):
    if arguments.kv_cache:
        sys.exit("collect: --kv-cache: with vLLM keys and values are not recorded; use transformers for them")
    block = block_of(arguments)
    paths = os.environ.get("PYTHONPATH", "")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["PYTHONPATH"] = f"{SCRIPTS}{os.pathsep}{paths}" if paths else str(SCRIPTS)  # of vLLM's workers
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(arguments.target or arguments.model)
    engine = LLM(**options_of(arguments, block))
    models = [pathlib.Path(folder, "config.json").read_text() for folder in (arguments.model, arguments.target) if folder]
    key = text.key(arguments, models, "vllm", arguments.tensor_parallel, block, arguments.answer)
    started = engine.collective_rpc("start_recording", args=(str(arguments.model), str(arguments.output.resolve()),
                                                             arguments.clip if arguments.gram else None, key, arguments.resume, block))
    errors = [error for _, _, error in started if error]
    if errors:
        sys.exit(f"collect: {errors[0]}")
    try:
        done = recorder.agreed([done for done, _, _ in started], arguments.output)
    except ValueError as error:
        sys.exit(f"collect: {error}")
    print("".join(f"collect: not recorded: {line}\n" for line in started[0][1]), end="", file=sys.stderr)
    sampling = SamplingParams(temperature=0, max_tokens=arguments.answer, detokenize=False)

    def forward(tokens):
        engine.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)

    tokens = text.run(arguments, tokenizer, done, forward, lambda seen: engine.collective_rpc("keep_recording", args=(seen,)), True)
    finished = engine.collective_rpc("finish_recording")
    engine.collective_rpc("forget_recording")
    for rank, (file, inputs, lines) in enumerate(finished):
        if rank == 0:
            print("".join(f"collect: {line}\n" for line in lines), end="", file=sys.stderr)
        if file:
            print(f"{file}: {inputs} inputs, {tokens} tokens")
