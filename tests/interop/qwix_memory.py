"""qwix_memory.py make|document|ours FOLDER: the memory that one way of loading takes, as a line of JSON. A process of its own,
since memory that was once taken counts for ever."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import importlib.util
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ["QUANTMILL_SOURCE_DIR"], "tests", "support"))

import coded_models

coded_models.HIDDEN, coded_models.INNER, coded_models.HEADS = 1024, 4096, 16
LAYERS = 8


def make(folder):
    coded_models.CodedModel("fp8-block", layers=LAYERS).save(folder / "source", files=8)
    subprocess.run([os.environ["QUANTMILL"], "convert", folder / "source", folder / "out", "--layout", "qwix", "--jax-model",
                    "nnx-fused", "--max-shard-size", "16M"], check=True, capture_output=True)
    print(json.dumps({}))


def resident():
    """The most that this process has held, in MiB; getrusage would count what held the process that started it."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def main():
    way, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if way == "make":
        return make(folder)
    import jax
    import jax.numpy as jnp

    import qwix_document
    from qwix_models import Model, Spec

    spec = Spec(layers=LAYERS, fused=True)
    tokens = jnp.arange(4)[None]
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    before = resident()
    if way == "document":
        model = qwix_document.load(folder / "source", lambda: Model(spec), tokens, mesh, 128)
    else:
        where = importlib.util.spec_from_file_location("load_qwix", folder / "out" / "load_qwix.py")
        load_qwix = importlib.util.module_from_spec(where)
        where.loader.exec_module(load_qwix)
        model = load_qwix.load(folder / "out", lambda: Model(spec), tokens, mesh=mesh, partition={"out": "x"})
    jax.block_until_ready(model.layers[LAYERS - 1].mlp.down_proj.kernel)
    stored = sum(file.stat().st_size for file in (folder / "out").glob("*.safetensors")) / 2**20
    print(json.dumps({"peak": resident() - before, "checkpoint": stored}))


if __name__ == "__main__":
    main()
