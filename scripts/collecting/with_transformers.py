"""Records with transformers, in one process or under torchrun in several. For scripts/collect."""
import os
import pathlib
import sys

from collecting import recorder, text


def local(tensor):
    """Of a tensor that is split over processes: this one's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_split(module):
    """Whether each process has some columns of a linear's weight."""
    weight = getattr(module, "weight", None)
    return hasattr(weight, "to_local") and weight.to_local().shape[-1] < weight.shape[-1]


def gathering(torch, ranks):
    def gather(values):
        parts = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(ranks)]
        torch.distributed.all_gather(parts, values.contiguous())
        return torch.cat(parts, -1)
    return gather


def hook_modules(model, seen, torch):
    """Records what linears and modules of experts are given."""
    def hook(name):
        def record(module, positional, named):
            values = positional[0] if positional else next((v for v in named.values() if torch.is_tensor(v)), None)
            if values is not None:
                values = local(values)
                seen.see(name, seen.share(values, module.weight.shape[-1]) if is_split(module) else values)
        return record

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) or name.endswith(".experts"):
            module.register_forward_pre_hook(hook(name), with_kwargs=True)


def add_experts(seen, name, experts, first, inputs):
    """Of a tensor that all experts share: one entry for each, also for those that no token reaches."""
    stem, part = name.rsplit(".", 1)
    if f"{stem}.0.{part}" not in seen.sums:
        for expert in range(experts):
            seen.add(f"{stem}.{expert}.{part}", inputs[0].new_zeros(0, inputs[0].shape[-1]))
    for expert, rows in enumerate(inputs, first):
        rows = rows.detach().reshape(-1, rows.shape[-1])
        seen.add(f"{stem}.{expert}.{part}", rows[rows.any(1)])  # rows of zeros stand for other experts' tokens


def expert_inputs(model, seen, torch):
    """A context that records what reaches the down_proj of single experts where those of all are one tensor of three dimensions: no
    module has that as its input, so products with a part of such a tensor are looked for."""
    from torch.overrides import TorchFunctionMode

    stacked = {}
    for name, parameter in model.named_parameters():
        if name.endswith("experts.down_proj") and parameter.dim() == 3:
            part = local(parameter)
            if seen.whole and len(part) < len(parameter):
                sys.exit(f"collect: --gram: each process has other experts of {name}; record them without")
            stacked[part.untyped_storage().data_ptr()] = name, part, parameter.numel() // part.numel()
    products = {torch.nn.functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm}

    class ExpertInputs(TorchFunctionMode):
        def __torch_function__(self, function, types, positional=(), named=None):
            if function in products and len(positional) > 1:
                rows, weight = (local(value) for value in positional[:2])
                name, parameter, parts = stacked.get(weight.untyped_storage().data_ptr(), (None, None, 1))
                if name is not None:
                    first = (weight.data_ptr() - parameter.data_ptr()) // (parameter.stride(0) * parameter.element_size())
                    rows = seen.share(rows, parts * rows.shape[-1]) if parts > 1 else rows
                    add_experts(seen, name, len(parameter), first, rows if weight.dim() == 3 else [rows])
            return function(*positional, **(named or {}))

    return ExpertInputs()


def recording_cache(model, seen):
    """A cache that records what it is given and keeps nothing."""
    from transformers import DynamicCache

    attentions = {module.layer_idx: (name, module) for name, module in model.named_modules()
                  if hasattr(module, "layer_idx") and hasattr(module, "o_proj")}
    if not attentions:
        sys.exit("collect: --kv-cache: the model has no attention with a layer's number and an o_proj")

    class Cache(DynamicCache):
        def update(self, keys, values, layer, *rest, **settings):
            name, attention = attentions[layer]
            for kind, states in (("k", keys), ("v", values)):
                rows = states.detach().transpose(1, 2).flatten(2).flatten(0, 1)
                made_by = getattr(attention, f"{kind}_proj", None)
                if seen.whole and made_by is not None:
                    rows = seen.share(rows, made_by.weight.shape[0])
                seen.add(f"{name}.{kind}_cache", rows)
            return keys, values

    return Cache()


def load_model(arguments, ranks):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(arguments.model)
    for part in (config, getattr(config, "text_config", None)):
        if part is not None:
            part._experts_implementation = "eager"  # one expert after the other, so that the input of each can be seen
    if ranks > 1:
        return AutoModelForCausalLM.from_pretrained(arguments.model, config=config, dtype=arguments.dtype, tp_plan="auto").eval()
    spread = {"device_map": "auto"} if arguments.device == "auto" else {}  # needs the package accelerate
    model = AutoModelForCausalLM.from_pretrained(arguments.model, config=config, dtype=arguments.dtype, **spread)
    if not spread:
        model.to(arguments.device)
    return model.eval()


def resume(progress, torch, ranks):
    """Tokens that an earlier run recorded."""
    try:
        counts = [progress.resume()] * ranks
        if ranks > 1:
            torch.distributed.all_gather_object(counts, counts[0])
        return recorder.agreed(counts, progress.prefix)
    except ValueError as error:
        sys.exit(f"collect: {error}")


def collect(arguments):
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = load_model(arguments, ranks)
    seen = recorder.Recorder(torch, arguments.clip if arguments.gram else None, rank, ranks, gathering(torch, ranks))
    hook_modules(model, seen, torch)
    config = pathlib.Path(arguments.model, "config.json").read_text()
    progress = recorder.Progress(arguments.output, text.key(arguments, config, rank, ranks), seen)
    done = resume(progress, torch, ranks) if arguments.resume else 0

    def forward(tokens):
        cache = {"past_key_values": recording_cache(model, seen)} if arguments.kv_cache else {}
        model(input_ids=torch.tensor([tokens], device=model.device), use_cache=arguments.kv_cache, **cache)

    with torch.inference_mode(), expert_inputs(model, seen, torch):
        tokens = text.run(arguments, tokenizer, done, forward, progress.keep, rank == 0)
    if seen.writes:
        file, statistics = recorder.write(arguments.output, seen)
        if rank == 0:
            print("".join(f"collect: {line}\n" for line in recorder.coverage(statistics)), end="", file=sys.stderr)
        print(f"{file}: {len(statistics)} inputs, {tokens} tokens")
    if ranks > 1:
        torch.distributed.barrier()  # what was kept for a later run is kept until all have written
    progress.file.unlink(missing_ok=True)
