"""Importance matrices as llama.cpp's tools write them: GGUF (ggml's docs/gguf.md) and the older .dat. Standard library and numpy only."""
import struct

import numpy as np

UINT32, STRING, ARRAY = 4, 8, 9
ALIGNMENT = 32


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(tensors, kind="imatrix", version=3):
    """The bytes of a file of F32 tensors: name -> array, whose last axis varies fastest."""
    keys = [text("general.type") + struct.pack("<I", STRING) + text(kind),
            text("imatrix.datasets") + struct.pack("<IIQ", ARRAY, STRING, 2) + text("a.txt") + text("b.txt"),
            text("imatrix.chunk_count") + struct.pack("<II", UINT32, 8)]
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys)
    data = b""
    for name, values in tensors.items():
        header += text(name) + struct.pack(f"<I{values.ndim}QIQ", values.ndim, *reversed(values.shape), 0, len(data))
        data += values.astype("<f4").tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    return header + bytes(-len(header) % ALIGNMENT) + data


def imatrix_gguf(sums):
    """sums: weight -> (sums of x^2 [experts, channels], tokens [experts])."""
    tensors = {}
    for name, (squares, tokens) in sums.items():
        tensors[name + ".in_sum2"] = np.asarray(squares)
        tensors[name + ".counts"] = np.asarray(tokens, float).reshape(-1, 1)
    return gguf(tensors)


def imatrix_dat(sums, calls=8, trailer=True):
    data = struct.pack("<i", len(sums))
    for name, (squares, tokens) in sums.items():
        means = np.asarray(squares) / np.maximum(np.asarray(tokens, float), 1).reshape(-1, 1)
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, means.size)
        data += (calls * means).astype("<f4").tobytes()
    return data + (struct.pack("<ii", 8, 5) + b"a.txt" if trailer else b"")
