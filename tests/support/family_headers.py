"""Released models of tests/golden/families as checkpoints without data: sparse files. Standard library only."""
import json
import math
import re
import struct


def names_of(pattern):
    """"layers.[0-2,5].x" is layers 0, 1, 2 and 5."""
    found = re.search(r"\[([0-9,-]+)\]", pattern)
    if not found:
        return [pattern]
    names = []
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            names += names_of(f"{pattern[:found.start()]}{number}{pattern[found.end():]}")
    return names


def shapes_of(family):
    """Tensor -> shape. `family`: a file of tests/golden/families."""
    return {name: shape for pattern, shape, *_ in json.loads(family.read_text())["header"] for name in names_of(pattern)}


def save_sparse(folder, family):
    """In BF16, all zero."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(json.loads(family.read_text())["config"]))
    header, size = {}, 0
    for name, shape in shapes_of(family).items():
        end = size + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, end]}
        size = end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    return folder
