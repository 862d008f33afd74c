"""Qwix loads what layout qwix holds, without any transformation, on one device and on four: the rules are Qwix's own, names,
shapes and types are the template's, bytes arrive unchanged, values are those of the source, and models compute the same.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # to compile sooner

import importlib.util
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from orbax.checkpoint.experimental import v1 as ocp

sys.path.insert(0, os.path.join(os.environ["QUANTMILL_SOURCE_DIR"], "tests", "support"))

from coded_models import CodedModel
from coded_weights import CONFIGS
from qwix_made import check_made
from qwix_models import Model, Spec
from qwix_reference import wanted_parameters
from qwix_requantizing import requantizing
from qwix_uses import check_activations, check_document, check_memory, check_refusals, check_training, stored_entries
from report import Report

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "qwix"
TOKENS = jnp.arange(12).reshape(2, 6)
CARRIERS = {("int8", "int4"), ("float8_e4m3fn", "float4_e2m1fn")}
# name -> kind of source, JAX model, what the model is built of, axes that the mesh of four cuts where it computes (nothing: on one device)
CASES = {kind: (kind, "nnx", Spec(), None) for kind in CONFIGS}
CASES |= {
    "fused, in a dict, 4 devices": ("fp8-block", "nnx-fused", Spec(layers_as="dict", fused=True), {"out": "x"}),
    "scanned, 4 devices": ("int4-asymmetric", "nnx-scan", Spec(layers=4, layers_as="scan"), {"in": "x"}),
    "einsum experts, 4 devices": ("fp8-block", "nnx", Spec(experts=4), {"expert": "x"}),
    "opaque experts, 4 devices": ("fp8-block-bf16", "qwen3.5", Spec(experts=4, opaque=True), {"expert": "x"}),
    "opaque experts, one device": ("mxfp4", "qwen3.5", Spec(experts=4, opaque=True), None),
    "bfloat16 parameters, powers of two": ("mxfp4", "nnx", Spec(dtype=jnp.bfloat16), None),
    "bfloat16 parameters": ("fp8-block-bf16", "nnx", Spec(dtype=jnp.bfloat16), None),
}


def quantmill(*arguments):
    done = subprocess.run([os.environ["QUANTMILL"], *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"quantmill {arguments[0]}: {done.stderr}")


def converted(name, kind, jax_model, spec):
    """The CodedModel and the checkpoint in layout qwix that is made of it, in several files."""
    folder = WORK / name.replace(" ", "-").replace(",", "")
    model = CodedModel(kind, layers=spec.layers, experts=spec.experts)
    source = model.save(folder / "source")
    scales = "f32" if spec.dtype == jnp.float32 else "source"  # as the model's parameters, so that Qwix casts none
    quantmill("convert", source, folder / "out", "--layout", "qwix", "--jax-model", jax_model, "--max-shard-size", "500K",
              "--scale-type", scales)
    return model, folder / "out"


def loader(folder):
    """load_qwix.py as it lies in the checkpoint."""
    spec = importlib.util.spec_from_file_location("load_qwix", folder / "load_qwix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored_tensors(folder):
    """Name -> array as it lies in the files, by Orbax without any help."""
    context = ocp.Context()
    context.checkpoint_layout = ocp.options.CheckpointLayout.SAFETENSORS
    with context:
        return {name: np.asarray(array) for name, array in ocp.load(folder).items()}


def leaves_of(model):
    """Name -> array of every parameter, parts of quantized ones apart."""
    state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return {".".join(map(str, path)): leaf for path, leaf in flatten_dict(state).items()}


def first_difference(found, wanted):
    for name in sorted(set(found) | set(wanted)):
        if name not in found or name not in wanted:
            return f"{name} is only in {'what was found' if name in found else 'what is wanted'}"
        if not np.array_equal(np.asarray(found[name]), wanted[name]):
            return f"{name} differs"
    return None


def decoded_leaves(leaves):
    """Parameters with their quantized parts put together by qwix.dequantize."""
    result = {name: np.asarray(leaf, np.float32) for name, leaf in leaves.items() if ".array." not in name}
    for name in [name for name in leaves if name.endswith(".array.qvalue")]:
        parts = {part: leaves.get(f"{name.removesuffix('qvalue')}{part}") for part in ("qvalue", "scale", "zero_point")}
        parts["scale"] = parts["scale"].astype(jnp.float32)
        result[name.removesuffix(".array.qvalue")] = np.asarray(qwix.dequantize(qwix.QArray(**parts)))
    return result


def same_bytes(loaded, file):
    """Equal to the byte; values and signs where a type of four bits came in one of eight."""
    loaded = np.asarray(loaded)
    if loaded.dtype == file.dtype:
        return np.array_equal(loaded.view(np.uint8), file.view(np.uint8))
    loaded, file = loaded.astype(np.float32), file.astype(np.float32)
    return np.array_equal(loaded.view(np.uint32), file.view(np.uint32))


def check_parts(leaves, stored):
    """Shapes, types but for the declared carriers, and bytes are those of the files."""
    for name in sorted(set(leaves) | set(stored)):
        if name not in leaves or name not in stored:
            return f"{name} is only in {'the model' if name in leaves else 'the files'}"
        loaded, file = leaves[name], stored[name]
        types = (str(file.dtype), str(loaded.dtype))
        if loaded.shape != file.shape or not (types[0] == types[1] or types in CARRIERS or ".array." not in name):
            return f"{name}: {types[0]}{file.shape} in the files, {types[1]}{loaded.shape} in the model"
        if not same_bytes(loaded, file):
            return f"{name}: bytes changed"
    return None


def check_rules(load_qwix, folder, stored):
    """Equal to what Qwix infers from the codes, once it is told the tiles; it can't see that codes have four bits."""
    opaque = {name for name, entry in stored_entries(folder).items() if entry.get("opaque")}
    tree = nnx.restore_int_paths(unflatten_dict({tuple(name.split(".")): array for name, array in stored.items() if name not in opaque}))
    ours = load_qwix.rules(folder)
    carried = {target: file for file, target in CARRIERS}
    restored = {tile: {rule.module_path: rule for rule in qwix.restore_quantization_rules(
        tree, qwix.QuantizationRule, tile_size=tile, act_qtype=None)} for tile in {rule.tile_size for rule in ours}}

    def comparable(rule):
        kind = str(jnp.dtype(rule.weight_qtype))
        return rule.module_path, carried.get(kind, kind), rule.act_qtype, rule.tile_size, rule.weight_calibration_method

    for rules in restored.values():
        if set(rules) != {rule.module_path for rule in ours}:
            return f"rules for {[rule.module_path for rule in ours]}, Qwix infers {list(rules)}"
    different = [rule for rule in ours if comparable(rule) != comparable(restored[rule.tile_size][rule.module_path])]
    return f"{different} are not what Qwix infers" if different else None


def relative(found, wanted):
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def is_cut(leaves, axes, stored):
    """Whether every tensor that has an axis of the mesh's, of a size that it divides, lies in four parts."""
    for name, leaf in leaves.items():
        entry = stored[name]
        cut = any(axis in axes and size % 4 == 0 for axis, size in zip(entry["axes"], entry["shape"]))
        if cut != (not leaf.sharding.is_fully_replicated):
            return f"{name} {leaf.shape}: {leaf.sharding}"
    return None


def check_case(report, name, kind, jax_model, spec, axes):
    model, folder = converted(name, kind, jax_model, spec)
    load_qwix = loader(folder)
    stored = stored_tensors(folder)
    on_four = {"mesh": jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)), "partition": axes or {"out": "x"}}
    placing = on_four if axes else {}

    def build():
        return Model(spec)

    with requantizing() as again:
        quantized = load_qwix.load(folder, build, TOKENS, **placing)
    leaves = leaves_of(quantized)
    report.check(f"{name}: nothing that Qwix would quantize again", f"{again[:3]} would be" if again else None)
    report.check(f"{name}: rules are those that Qwix infers", check_rules(load_qwix, folder, stored))
    abstract = [key for key, leaf in leaves.items() if isinstance(leaf, jax.ShapeDtypeStruct)]
    report.check(f"{name}: every parameter is there, unchanged", f"not filled: {abstract}" if abstract else check_parts(leaves, stored))
    spread = leaves if axes else leaves_of(load_qwix.load(folder, build, TOKENS, **on_four))
    wrong = is_cut(spread, on_four["partition"], stored_entries(folder)) or check_parts(spread, stored)
    report.check(f"{name}: on four devices as asked for", wrong)
    wanted = wanted_parameters(model, spec)
    report.check(f"{name}: values are the source's", first_difference(decoded_leaves(leaves), wanted))
    full = load_qwix.load(folder, build, use="full", **placing)
    full_leaves = leaves_of(full)
    rounded = {key: np.asarray(jnp.asarray(values, spec.dtype)) for key, values in wanted.items()}
    report.check(f"{name}: dequantized they are too", first_difference(full_leaves, rounded))
    difference = relative(quantized(TOKENS), full(TOKENS))
    tolerance = 1e-5 if spec.dtype == jnp.float32 else 2e-2
    report.check(f"{name}: computes what the dequantized model does", None if difference <= tolerance else f"{difference} apart")


def main():
    report = Report()
    shutil.rmtree(WORK, ignore_errors=True)
    for name, case in CASES.items():
        report.section(name, check_case, name, *case)
    report.section("made", check_made, WORK, loader, TOKENS)
    report.section("training", check_training, converted, loader)
    report.section("activations", check_activations, converted, loader)
    report.section("refusals", check_refusals, converted, loader, stored_tensors)
    report.section("the document's way", check_document, converted, loader)
    report.section("memory", check_memory, WORK / "memory")
    report.close()


if __name__ == "__main__":
    main()
