"""Records with vLLM, inside its own workers. For scripts/collect."""
import json
import os
import pathlib
import sys

from collecting import recorder, text

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent


def options_of(arguments):
    """Of vLLM's engine. A sequence at a time and in one piece, nothing kept of an earlier one and nothing compiled: then every module sees
    each token once, and those of a sequence together."""
    options = {"model": arguments.model, "dtype": arguments.dtype, "tensor_parallel_size": arguments.tensor_parallel,
               "max_model_len": arguments.length + 1, "max_num_batched_tokens": arguments.length + 1, "max_num_seqs": 1,
               "enable_prefix_caching": False, "enforce_eager": True, "skip_tokenizer_init": True, "disable_log_stats": True,
               "worker_extension_cls": "collecting.vllm_worker.RecordingWorker"}
    for given in arguments.vllm_option:
        name, found, value = given.partition("=")
        if not found or name in options:
            sys.exit(f"collect: --vllm-option {given}: NAME=VALUE is wanted, and of an option that collect does not set itself")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def collect(arguments):
    if arguments.kv_cache:
        sys.exit("collect: --kv-cache: with vLLM keys and values are not recorded; use transformers for them")
    paths = os.environ.get("PYTHONPATH", "")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["PYTHONPATH"] = f"{SCRIPTS}{os.pathsep}{paths}" if paths else str(SCRIPTS)  # of vLLM's workers
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    engine = LLM(**options_of(arguments))
    key = text.key(arguments, pathlib.Path(arguments.model, "config.json").read_text(), "vllm", arguments.tensor_parallel)
    started = engine.collective_rpc("start_recording", args=(str(arguments.model), str(arguments.output.resolve()),
                                                             arguments.clip if arguments.gram else None, key, arguments.resume))
    errors = [error for _, _, error in started if error]
    if errors:
        sys.exit(f"collect: {errors[0]}")
    try:
        done = recorder.agreed([done for done, _, _ in started], arguments.output)
    except ValueError as error:
        sys.exit(f"collect: {error}")
    print("".join(f"collect: not recorded: {line}\n" for line in started[0][1]), end="", file=sys.stderr)
    sampling = SamplingParams(temperature=0, max_tokens=1, detokenize=False)

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
