"""The checkpoints that the readers load, what `quantmill inspect` says of them, and broken copies of them.

Values are float32 tensors under the names that the source checkpoint uses, one per tensor: a packed weight counts as
the matrix that it stands for. A reader is a function: folder -> {name: values}; it raises when it refuses the folder.
"""

import json
import os
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"])
SOURCE = pathlib.Path(os.environ["QUANTMILL_INTEROP_SOURCE"])
SCALE = "_scale"  # a packed weight NAME has its scale bytes in NAME_scale


def inspected(folder):
    """What `quantmill inspect --tensor NAME --json` printed for every tensor; `run` has stored it. The nine digits
    that it prints tell every float32 from its neighbours."""
    values = {}
    for line in (folder.with_suffix(".inspected")).read_text().splitlines():
        entry = json.loads(line)
        rows = torch.tensor(entry["values"], dtype=torch.float32)
        values[entry["name"]] = rows.reshape(entry["shape"])
    return values


def config(folder):
    return json.loads((folder / "config.json").read_text())


def tensors(folder):
    """All tensors as stored, whatever the number of files."""
    stored = {}
    for path in sorted(folder.glob("*.safetensors")):
        stored.update(load_file(path))
    return stored


def packed_names(folder):
    return {name.removesuffix(SCALE) for name in tensors(folder) if name.endswith(SCALE)}


def write_copy(folder, name, change_tensors=None, change_config=None):
    """A copy of `folder` as WORK/NAME in one file, with its tensors and its config.json changed in place."""
    copy = WORK / name
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    stored, settings = tensors(folder), config(folder)
    if change_tensors:
        change_tensors(stored)
    if change_config:
        change_config(settings)
    save_file({key: value.contiguous() for key, value in stored.items()},
              copy / "model.safetensors", metadata={"format": "pt"})
    (copy / "config.json").write_text(json.dumps(settings, indent=2))
    return copy


def differing(values, expected):
    """Names of tensors whose values are not exactly the expected ones; absent and additional names count."""
    return sorted(name for name in values.keys() | expected.keys()
                  if name not in values or name not in expected
                  or not torch.equal(values[name], expected[name]))


def problem(reader, folder, expected):
    """None when `reader` takes the folder and has exactly the expected values, otherwise what is wrong."""
    try:
        values = reader(folder)
    except Exception as error:  # whatever a reader throws is its way to refuse
        text = " ".join(str(error).split())
        return f"refused, {type(error).__name__}: {text[:90]}"
    names = differing(values, expected)
    return f"other values in {', '.join(names[:3])}" if names else None


# --- Faults that a writer could have. Each is one change to a good checkpoint that a reader must not accept as good.

KEY_PROJECTION = "layers.0.self_attn.k_proj.weight"
VALUE_PROJECTION = "layers.1.self_attn.v_proj.weight"
UP_PROJECTION = "layers.1.mlp.up_proj.weight"
DOWN_PROJECTION = "layers.0.mlp.down_proj.weight"


def without_scale(stored):
    del stored[KEY_PROJECTION + SCALE]


def transposed_shape(stored):
    rows, columns = stored[DOWN_PROJECTION].shape
    stored[DOWN_PROJECTION] = stored[DOWN_PROJECTION].reshape(columns, rows)


def swapped_nibbles(stored):
    weight = stored[UP_PROJECTION]
    stored[UP_PROJECTION] = (weight >> 4) | (weight << 4)


def scale_off_by_one(stored):
    stored[VALUE_PROJECTION + SCALE][5, 1] += 1


def exclude_without_kernel_projection(settings):
    section = settings["quantization_config"]
    section["exclude"] = [entry for entry in section["exclude"] if "kernel_projection" not in entry]


def exclude_with_packed_linear(settings):
    exclude = settings["quantization_config"]["exclude"]
    exclude += ["layers.0.mlp.down_proj", r"re:.*mlp\.down_proj$"]


# name: (change to the tensors, change to the config, the one tensor whose values differ where every reader loads it)
FAULTS = {
    "missing scale": (without_scale, None, None),
    "exclude list without kernel_projection": (None, exclude_without_kernel_projection, None),
    "packed linear in the exclude list": (None, exclude_with_packed_linear, None),
    "wrong shape": (transposed_shape, None, None),
    "swapped nibbles": (swapped_nibbles, None, UP_PROJECTION),
    "one scale byte off by one": (scale_off_by_one, None, VALUE_PROJECTION),
}


def check_packed(report):
    """What is read is quantized: so many linears of each output are."""
    for name, count in {"folded": 15, "folded-sharded": 15, "kept": 3}.items():
        packed = len(packed_names(WORK / name))
        report.check(f"{name} has {count} packed linears", None if packed == count else f"it has {packed}")


def check_reader(report, reader_name, reader):
    """Every good checkpoint read as inspected, every broken copy of the first one not."""
    for path in sorted(WORK.glob("*.inspected")):
        folder = path.with_suffix("")
        report.check(f"{reader_name} reads {folder.name} with the values that inspect prints",
                     problem(reader, folder, inspected(folder)))
    good = WORK / "folded"
    expected = inspected(good)
    for fault, (change_tensors, change_config, altered) in FAULTS.items():
        copy = write_copy(good, f"broken-{reader_name}", change_tensors, change_config)
        found = problem(reader, copy, expected)
        wanted = f"other values in {altered}"
        wrong = None
        if found is None:
            wrong = "taken for the good one"
        elif altered and found != wanted:
            wrong = f"found '{found}', wanted '{wanted}'"
        report.check(f"{reader_name}, {fault}: {found}", wrong)
