"""Every JAX model that quantmill knows by name, in real models so written: Qwen3.5 and Gemma 4 as Qwix's document spells them
compute what transformers computes; Tunix's Gemma has the parameters that Tunix's own loader makes; quantized or dequantized,
on one device and on four, each computes the same."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # to compile sooner

import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

sys.path.insert(0, os.path.join(os.environ["QUANTMILL_SOURCE_DIR"], "tests", "support"))

import qwix_document
import qwix_tunix
from check_qwix import decoded_leaves, first_difference, is_cut, leaves_of, loader, quantmill, relative
from coded_weights import CONFIGS, FP8_BLOCK
from qwix_gemma4 import Gemma4
from qwix_qwen35 import Qwen35
from qwix_readme import check_readme
from qwix_requantizing import requantizing
from qwix_uses import all_equal, parameters_of, stored_entries
from report import Report

import qwix_sources as sources

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "qwix-presets"
TOKENS = np.random.default_rng(3).integers(0, sources.VOCAB, (2, 9))
TOLERANCE = 1e-5  # of the largest logit, in F32
apply = nnx.jit(lambda model, *inputs: model(*inputs))


def document_models():
    """Name -> (JAX model, source, function that builds the model, shapes of scales: inputs and outputs / squares that fit)."""
    squares = {**FP8_BLOCK, "weight_block_size": [64, 64]}
    listed = sources.Qwen35(sources.square_blocks(128), FP8_BLOCK, layers=2, interval=2, fused=False)
    blocks = sources.Qwen35(sources.square_blocks(128, "F32"), FP8_BLOCK, layers=6, interval=3, fused=True)
    gemma = sources.Gemma4(sources.square_blocks(64), squares, fused=True)
    return {"qwen3.5": ("qwen3.5", listed, lambda: Qwen35(2, 2, False), {(4, 6), (3, 4)}),  # 192 outputs: 64
            "qwen3.5 in blocks": ("qwen3.5-scan", blocks, lambda: Qwen35(6, 3, True), {(2, 3), (3, 4)}),  # 128 for 256 x 384
            "gemma4": ("gemma4", gemma, lambda: Gemma4(gemma.layer_types), {(4, 6), (3, 4)})}


def converted(name, jax_model, source):
    folder = WORK / name.replace(" ", "-")
    saved = source.save(folder)
    np.save(folder / "plain" / "tokens.npy", TOKENS)
    quantmill("convert", saved, folder / "out", "--layout", "qwix", "--jax-model", jax_model, "--max-shard-size", "500K",
              "--scale-type", "f32")
    return folder


def start_transformers(folders):
    """What transformers computes of the same values, in the environment that has it."""
    script = pathlib.Path(__file__).with_name("torch_logits.py")
    return subprocess.Popen([os.environ["QUANTMILL_INTEROP_PYTHON"], script, *[folder / "plain" for folder in folders]],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def close(found, wanted):
    difference = relative(found, wanted)
    return None if difference <= TOLERANCE else f"{difference} apart"


def check_document_model(report, name, build, squares, folder):
    load_qwix = loader(folder / "out")
    tokens = jnp.asarray(TOKENS)
    full = apply(load_qwix.load(folder / "out", build, use="full"), tokens)
    with requantizing() as again:
        quantized = load_qwix.load(folder / "out", build, tokens)
    found = {leaf.shape[-2:] for key, leaf in leaves_of(quantized).items() if "experts" in key and key.endswith(".array.scale")}
    report.check(f"{name}: experts are codes with scales of squares", None if found == squares else f"{found}")
    report.check(f"{name}: nothing that Qwix would quantize again", f"{again[:3]} would be" if again else None)
    report.check(f"{name}: quantized it computes what it does dequantized", close(apply(quantized, tokens), full))
    return full


def check_on_four(report, name, build, folder, full):
    tokens = jnp.asarray(TOKENS)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = loader(folder / "out").load(folder / "out", build, tokens, mesh=mesh, partition={"expert": "x"})
    report.check(f"{name}: experts lie on four devices", is_cut(leaves_of(spread), {"expert"}, stored_entries(folder / "out")))
    report.check(f"{name}: and compute the same there", close(apply(spread, tokens), full))


def check_document_way(report, source, build, folder):
    """All steps of the document in Python, for the checkpoint that it describes: experts in one tensor, blocks of 64."""
    tokens = jnp.asarray(TOKENS)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    theirs = qwix_document.load(folder / "source", build, tokens, mesh, 64, leave_out=["model.vision_tower."])
    ours = loader(folder / "out").load(folder / "out", build, tokens)
    report.check("gemma4: the document's way gives the same parameters", all_equal(parameters_of(theirs), parameters_of(ours)))


def check_tunix(report, preset, source, prefix):
    folder = converted(preset, preset, source)
    source.save_plain(folder / "tunix", prefix)
    load_qwix = loader(folder / "out")
    model_class, config, _ = qwix_tunix.MODELS[preset]

    def build():
        return model_class(config(source), rngs=nnx.Rngs(params=0))

    time = TOKENS.shape[1]
    positions = jnp.broadcast_to(jnp.arange(time), TOKENS.shape)
    seen = jnp.broadcast_to(jnp.tril(jnp.ones((time, time), bool)), (len(TOKENS), time, time))
    inputs = (jnp.asarray(TOKENS), positions, None, seen)
    full = load_qwix.load(folder / "out", build, use="full")
    theirs = leaves_of(qwix_tunix.loaded_by_tunix(preset, source, folder / "tunix"))
    report.check(f"{preset}: parameters are those that Tunix's loader makes", first_difference(leaves_of(full), theirs))
    wanted = apply(full, *inputs)[0]
    quantized = load_qwix.load(folder / "out", build, *inputs, opaque=False)
    wrong = first_difference(decoded_leaves(leaves_of(quantized)), theirs)
    report.check(f"{preset}: so are the quantized ones", wrong)
    report.check(f"{preset}: quantized it computes what it does dequantized", close(apply(quantized, *inputs)[0], wanted))
    mesh = jax.make_mesh((2, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spread = load_qwix.load(folder / "out", build, *inputs, opaque=False, mesh=mesh)
    placed = leaves_of(spread)["layers.0.mlp.down_proj.kernel.array.qvalue"].sharding.spec
    report.check(f"{preset}: on four devices as Tunix places it", None if tuple(placed) == ("tp", "fsdp") else f"{placed}")
    with jax.set_mesh(mesh):
        report.check(f"{preset}: and computes the same there", close(apply(spread, *inputs)[0], wanted))


def main():
    report = Report()
    shutil.rmtree(WORK, ignore_errors=True)
    models = document_models()
    folders = {name: converted(name, jax_model, source) for name, (jax_model, source, *_) in models.items()}
    transformers = start_transformers(folders.values())
    logits = {}
    for name, (_, _, build, squares) in models.items():
        report.section(name, lambda *of: logits.update({of[1]: check_document_model(*of)}), name, build, squares, folders[name])
    report.section("qwen3.5 on four devices", check_on_four, "qwen3.5 in blocks", models["qwen3.5 in blocks"][2],
                   folders["qwen3.5 in blocks"], logits["qwen3.5 in blocks"])
    report.section("the document's way", check_document_way, *models["gemma4"][1:3], folders["gemma4"])
    report.section("README", check_readme, WORK, loader)
    qwix_tunix.without_casts()
    report.section("tunix-gemma3", check_tunix, "tunix-gemma3", sources.Gemma3(sources.of_kind("int8"), CONFIGS["int8"]), "model.")
    report.section("tunix-gemma4", check_tunix, "tunix-gemma4",
                   sources.Gemma4(sources.of_kind("fp8-channel"), CONFIGS["fp8-channel"], fused=False), "model.language_model.")
    said, _ = transformers.communicate()
    for name, found in logits.items():
        file = folders[name] / "plain" / "logits.npy"
        report.check(f"{name}: it computes what transformers does", close(found, np.load(file)) if file.exists() else said[-500:])
    report.close()


if __name__ == "__main__":
    main()
