"""Loads the checkpoint that this file came with into a flax.nnx model, with Qwix (https://github.com/google/qwix).

    from load_qwix import load
    model = load(FOLDER, lambda: MyModel(nnx.Rngs(0)), dummy_input)                 # weights stay quantized
    model = load(FOLDER, build, dummy_input, use="qt", act_qtype="int8")            # for quantized training
    model = load(FOLDER, build, use="full")                                         # dequantized
    model = load(FOLDER, build, dummy_input, mesh=mesh, partition={"expert": "data", "out": "model"})

Names and shapes of the files are the model's. One file is read at a time, and of it what this process needs. Public calls
of Qwix, Orbax and Flax only; tested with qwix 0.1.8, jax 0.10.2, flax 0.12.8 and orbax-checkpoint 0.12.4.
"""
import contextlib
import json
import pathlib
import warnings

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from flax.traverse_util import unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint.experimental import v1 as ocp

LEAVES = (".array.qvalue", ".array.scale", ".array.zero_point")
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I8": "int8", "U8": "uint8", "F8_E4M3": "float8_e4m3fn",
         "I32": "int32", "I64": "int64", "BOOL": "bool", "F64": "float64"}


def rules(folder, kind=qwix.QuantizationRule, **settings):
    """The checkpoint's rules; settings (act_qtype, bwd_qtype …) come over what they say."""
    stored = json.loads((pathlib.Path(folder) / "qwix_rules.json").read_text())
    return [kind(**{**rule, **settings}) for rule in stored]


def load(folder, build, *inputs, use="ptq", mesh=None, partition=None, opaque=True, **settings):
    """The model that build() makes, filled. `inputs` are what it is called with; values do not matter.

    use        "ptq": quantized weights, "qt": a model for quantized training, "full": as build() makes it
    partition  name of an axis in qwix_abstract.json -> axis of the mesh; without it the model's own shardings count
    opaque     with "ptq", whether parameters that Qwix does not see become {"array": {"qvalue", "scale"}}, or are dequantized
    settings   of the rules
    ValueError where the model and the checkpoint do not have the same parameters.
    """
    folder = pathlib.Path(folder).resolve()
    stored = json.loads((folder / "qwix_abstract.json").read_text())["tensors"]
    orbax = ocp.Context()
    orbax.checkpoint_layout = ocp.options.CheckpointLayout.SAFETENSORS
    make, provider = build, None
    if use != "full":
        kind = qwix.QtRule if use == "qt" else qwix.QuantizationRule
        provider = (qwix.QtProvider if use == "qt" else qwix.PtqProvider)(rules(folder, kind, **settings))
        make = lambda: qwix.quantize_model(build(), provider, *inputs)  # noqa: E731
    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        model = nnx.eval_shape(make)
        if use == "ptq" and opaque:
            open_opaque(model, stored)
        check(model, stored, provider if use == "ptq" else None)
        for file in sorted({tensor["file"] for tensor in stored.values()}):
            state = {name: abstract(tensor, mesh, partition) for name, tensor in stored.items() if tensor["file"] == file}
            with orbax:
                arrays = ocp.load(folder / file, abstract_state=state)
            tree = unflatten_dict({path_in(model, name): array for name, array in arrays.items()})
            nnx.update(model, qwix.process_prequantized_params(tree, model, use_checkpoint_sharding=partition is not None))
    return model


def abstract(tensor, mesh, partition):
    """What Orbax reads a tensor as. A dimension that the mesh does not divide is not cut."""
    sharding = None
    if mesh is not None and partition is not None:
        wanted = [partition.get(axis) for axis in tensor["axes"]]
        cut = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(wanted, tensor["shape"])]
        sharding = NamedSharding(mesh, PartitionSpec(*cut))
    dtype = jnp.dtype(tensor["logical_dtype"] or TYPES[tensor["dtype"]])
    return jax.ShapeDtypeStruct(tuple(tensor["shape"]), dtype, sharding=sharding)


def path_in(model, name):
    """The name as keys: numbers where the model has a list."""
    keys, node = [], model
    for key in name.split("."):
        is_index = key.isdigit() and not isinstance(node, (dict, nnx.Dict))
        keys.append(int(key) if is_index else key)
        if isinstance(node, (list, tuple, nnx.List)):
            node = node[keys[-1]] if keys[-1] < len(node) else None
        else:
            node = node.get(key) if isinstance(node, dict) else getattr(node, key, None)
    return tuple(keys)


def open_opaque(model, stored):
    """Puts codes and scales in place of parameters that are read by kernels Qwix does not see into."""
    names = {name.removesuffix(LEAVES[0]) for name, tensor in stored.items() if tensor.get("opaque") and name.endswith(LEAVES[0])}
    for name in names:
        *path, last = path_in(model, name)
        owner = model
        for key in path:
            owner = owner[key] if isinstance(key, int) or isinstance(owner, (dict, nnx.Dict)) else getattr(owner, key)
        sharding = getattr(getattr(owner, last).get_value(), "sharding", None)
        codes = {leaf.rsplit(".", 1)[1]: abstract(stored[name + leaf], None, None) for leaf in LEAVES if name + leaf in stored}
        setattr(owner, last, {"array": {leaf: nnx.Param(jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding))
                                        for leaf, value in codes.items()}})


def check(model, stored, provider):
    """The same parameters on both sides, in the same shapes: Qwix misses none by itself, and broadcasts scales."""
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    wanted = {".".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path): leaf for path, leaf in leaves}
    names = {next((name.removesuffix(leaf) for leaf in LEAVES if name.endswith(leaf) and name not in wanted), name) for name in stored}
    if names != set(wanted):
        missing, extra = sorted(set(wanted) - names), sorted(names - set(wanted))
        raise ValueError(f"not in the checkpoint: {missing[:5]} ({len(missing)}); not in the model: {extra[:5]} ({len(extra)})")
    for name in names & set(stored):
        if wanted[name].shape != tuple(stored[name]["shape"]):
            raise ValueError(f"{name} is {stored[name]['shape']} in the checkpoint and {wanted[name].shape} in the model")
        if name.endswith(".scale") and stored[name]["role"] == "scale" and wanted[name].dtype.itemsize < 4 and stored[name]["dtype"] == "F32":
            warnings.warn(f"{name} is F32 in the checkpoint and rounded to {wanted[name].dtype}, the type of the model's parameters")
    if provider is not None and provider.get_unused_rules():
        raise ValueError(f"rules that match no operation of the model: {provider.get_unused_rules()}")
