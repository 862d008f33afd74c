"""Which modules of a vLLM model are which of its checkpoint. For scripts/collect."""


def mappers(model):
    """(path, vLLM's map of names below it) of the model and of models inside it, the outermost first."""
    return [(path, module.hf_to_vllm_mapper) for path, module in model.named_modules() if getattr(module, "hf_to_vllm_mapper", None)]


def mapped(tensor, maps):
    """The name that vLLM looks for where the checkpoint has `tensor`; None if it leaves that aside."""
    for path, mapper in maps:
        prefix = path + "." if path else ""
        if tensor.startswith(prefix):
            inner = mapper.map_name(tensor.removeprefix(prefix))
            if inner is None:
                return None
            tensor = prefix + inner
    return tensor


def packed(model):
    """Module that stands for several -> its parts in order, in the last components of their names."""
    found = {}
    for module in model.modules():
        found |= getattr(module, "packed_modules_mapping", None) or {}
    return found


def checkpoint_names(model, tensors):
    """vLLM's module -> the checkpoint's, in the order of what vLLM packs. `tensors`: the checkpoint's."""
    maps, packs = mappers(model), packed(model)
    whole = {part: name for name, parts in packs.items() for part in parts if part != name}
    modules = {name for name, _ in model.named_modules(remove_duplicate=False)}
    found = {}
    for module in dict.fromkeys(tensor.rpartition(".")[0] for tensor in tensors):
        name = (mapped(module + ".weight", maps) or "").rpartition(".")[0]
        stem, _, leaf = name.rpartition(".")
        candidates = (name, f"{stem}.{whole.get(leaf, leaf)}")
        place = next((candidate for candidate in candidates if candidate in modules), None)
        if place:
            found.setdefault(place, []).append(module)

    def order(module, name):
        parts = packs.get(module.rpartition(".")[2], ())
        leaf = name.rpartition(".")[2]
        return parts.index(leaf) if leaf in parts else len(parts)

    return {module: sorted(names, key=lambda name: order(module, name)) for module, names in found.items()}


def experts_prefix(runner, maps, tensors):
    """What the checkpoint calls the experts that vLLM calls `runner`: "model.layers.0.mlp.experts"; None if there are none."""
    for tensor in tensors:
        stem, found, _ = tensor.partition(".experts.")
        if found and (mapped(tensor, maps) or "").startswith(runner + "."):
            return stem + ".experts"
    return None
