"""Names and tensors of a checkpoint's safetensors files. For scripts/collect."""
import json
import pathlib
import struct


class Checkpoint:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            self.files = json.loads(index.read_text())["weight_map"]
        else:
            self.files = {name: file.name for file in sorted(self.folder.glob("*.safetensors")) for name in header(file)}
        self.opened = {}

    def part(self, tensor, *ranges):
        """Of a tensor: a slice of each of its first dimensions."""
        from safetensors import safe_open

        file = self.files[tensor]
        if file not in self.opened:
            self.opened[file] = safe_open(self.folder / file, "pt")
        return self.opened[file].get_slice(tensor)[ranges]


def header(file):
    with open(file, "rb") as opened:
        (size,) = struct.unpack("<Q", opened.read(8))
        return [name for name in json.loads(opened.read(size)) if name != "__metadata__"]
