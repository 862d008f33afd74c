"""What a checkpoint in layout qwix is for, beside inference: training; what must be refused; the document's own way."""

import json
import os
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

import qwix_document
from jobs import write_safetensors
from qwix_models import Model, Spec
from qwix_requantizing import requantizing

TOKENS = jnp.arange(12).reshape(2, 6)


def parameters_of(model):
    return {".".join(map(str, path)): leaf for path, leaf in flatten_dict(nnx.to_pure_dict(nnx.state(model, nnx.Param))).items()}


def stored_entries(folder):
    """Name -> what qwix_abstract.json says of it."""
    return json.loads((folder / "qwix_abstract.json").read_text())["tensors"]


def all_equal(found, wanted):
    different = [name for name in wanted if name not in found or not np.array_equal(np.asarray(found[name]), np.asarray(wanted[name]))]
    return f"{different[:3]} differ" if different or len(found) != len(wanted) else None


def check_training(report, converted, loader):
    """A quantized-training model of FP8 weights and activations: loss and gradients are those of full precision, nearly."""
    spec = Spec(layers=1)
    _, folder = converted("training", "fp8-block", "nnx", spec)
    load_qwix = loader(folder)
    model = load_qwix.load(folder, lambda: Model(spec), TOKENS, use="qt", act_qtype="float8_e4m3fn")
    full = load_qwix.load(folder, lambda: Model(spec), use="full")
    report.check("training: parameters are the dequantized ones", all_equal(parameters_of(model), parameters_of(full)))
    step = nnx.jit(nnx.value_and_grad(lambda trained: jnp.mean(trained(TOKENS) ** 2)))
    (loss, gradients), (full_loss, full_gradients) = step(model), step(full)
    report.check("training: the loss is that of full precision, but for FP8 activations",
                 None if abs(loss / full_loss - 1) < .1 else f"{loss} and {full_loss}")
    parallel = [float(jnp.vdot(ours, theirs) / jnp.linalg.norm(ours) / jnp.linalg.norm(theirs))
                for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(full_gradients))]
    report.check("training: so are the gradients", None if min(parallel) > .9 else f"cosines {parallel}")


def check_activations(report, converted, loader):
    """Activations that are quantized as they come, as Qwix does by default: the rules take any type for them."""
    spec = Spec(layers=1)
    for kind, act_qtype in (("int8", "int8"), ("fp8-channel", "float8_e4m3fn")):
        _, folder = converted(f"activations {kind}", kind, "nnx", spec)
        load_qwix = loader(folder)
        weights_only = np.asarray(load_qwix.load(folder, lambda: Model(spec), TOKENS)(TOKENS))
        both = np.asarray(load_qwix.load(folder, lambda: Model(spec), TOKENS, act_qtype=act_qtype)(TOKENS))
        error = float(np.linalg.norm(both - weights_only) / np.linalg.norm(weights_only))
        report.check(f"{kind}: with activations in {act_qtype} it computes nearly the same", None if 0 < error < .1 else f"{error} apart")


def raises(function, *words):
    """None if the call raises a ValueError or KeyError with these words."""
    try:
        function()
    except (ValueError, KeyError) as error:
        lacking = [word for word in words if word not in str(error)]
        return f"'{error}' lacks {lacking}" if lacking else None
    return "it was taken"


def check_refusals(report, converted, loader, stored_tensors):
    _, folder = converted("refusals", "fp8-block", "nnx", Spec())
    load_qwix = loader(folder)

    def load(layers):
        return load_qwix.load(folder, lambda: Model(Spec(layers=layers)), TOKENS)

    report.check("a parameter that the checkpoint lacks is missed",
                 raises(lambda: load(3), "not in the checkpoint: ['layers.2.input_layernorm.scale'"))
    report.check("one that the model lacks is named", raises(lambda: load(1), "not in the model: ['layers.1."))
    stored = stored_tensors(folder)
    rules = load_qwix.rules(folder)

    def process(tensors):
        template = nnx.eval_shape(lambda: qwix.quantize_model(Model(Spec()), qwix.PtqProvider(rules), TOKENS))
        tree = nnx.restore_int_paths(unflatten_dict({tuple(name.split(".")): array for name, array in tensors.items()}))
        return qwix.process_prequantized_params(tree, template)

    name = "layers.1.mlp.down_proj.kernel.array."
    report.check("Qwix refuses an extra parameter", raises(lambda: process({**stored, "layers.1.extra": stored["norm.scale"]}), "extra parameters"))
    zero_points = {name + "zero_point": np.zeros(stored[name + "scale"].shape, jnp.float8_e4m3fn)}
    report.check("Qwix refuses zero points of symmetric codes", raises(lambda: process({**stored, **zero_points}), 'unexpected "zero_point"'))
    report.check("Qwix refuses codes that are not transposed", raises(lambda: process({**stored, name + "qvalue": stored[name + "qvalue"].T}), "shape"))
    context = ocp.Context()
    context.checkpoint_layout = ocp.options.CheckpointLayout.SAFETENSORS
    with context:
        copy = folder.parent / "with-e8m0"
        shutil.copytree(folder, copy)
        write_safetensors(copy / "z.safetensors", {"z": ("F8_E8M0", np.zeros(4, np.uint8))})
        report.check("Orbax refuses a folder with an E8M0 tensor, which is why there is none", raises(lambda: ocp.metadata(copy), "nsupported dtype"))
        (copy / "z.safetensors").unlink()
        shutil.copy(next(copy.glob("*.safetensors")), copy / "z.safetensors")
        report.check("Orbax refuses a tensor in two files", raises(lambda: ocp.load(copy), "uplicate"))


def check_document(report, converted, loader):
    """The same arrays, from the source itself by the document's steps."""
    spec = Spec(fused=True)
    _, folder = converted("document", "fp8-block", "nnx-fused", spec)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    ours = loader(folder).load(folder, lambda: Model(spec), TOKENS)
    theirs = qwix_document.load(folder.parent / "source", lambda: Model(spec), TOKENS, mesh, 128)
    report.check("the document's way gives the same parameters", all_equal(parameters_of(ours), parameters_of(theirs)))
    with requantizing() as again:
        later = qwix_document.load(folder.parent / "source", lambda: Model(spec), TOKENS, mesh, 128)
    changed = all_equal(parameters_of(later), parameters_of(ours))
    report.check("with pull request 354 it would not, since square blocks would be quantized again: that case is seen",
                 None if len(again) == 12 and changed else f"{len(again)} were quantized again; {changed}")


def check_memory(report, folder):
    """Peak of resident memory while a model of 120 MB is loaded on four devices of this host, in processes of their own."""
    script = pathlib.Path(__file__).with_name("qwix_memory.py")

    def run(*arguments):
        done = subprocess.run([sys.executable, script, *map(str, arguments)], capture_output=True, text=True, env=os.environ)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        return json.loads(done.stdout.splitlines()[-1])

    run("make", folder)
    peaks = {way: run(way, folder) for way in ("document", "ours")}
    rows = [("way", "MiB of checkpoint", "MiB at most beyond imports", "times the checkpoint")]
    for way, found in peaks.items():
        rows.append((way, f"{found['checkpoint']:.0f}", f"{found['peak']:.0f}", f"{found['peak'] / found['checkpoint']:.1f}"))
    report.table("host memory of loading on 4 simulated devices", rows)
    report.check("loading takes less than half of the memory that the document's way does",
                 None if 2 * peaks["ours"]["peak"] < peaks["document"]["peak"] else f"{peaks}")
