"""Importance matrices as llama.cpp's own Python package writes them, read by quantmill."""
import os
import subprocess

import gguf
import numpy as np


def write_imatrix(path, sums):
    """sums: weight -> (sums of x^2 [matrices, channels], tokens of each matrix)."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["calibration.txt"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, (squares, tokens) in sums.items():
        writer.add_tensor(f"{name}.in_sum2", np.asarray(squares, np.float32))
        writer.add_tensor(f"{name}.counts", np.asarray(tokens, np.float32).reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def import_imatrix(path, model):
    out = path.with_suffix(".h5")
    out.unlink(missing_ok=True)
    return out, subprocess.run([os.environ["QUANTMILL"], "stats", "import", path, "--model", model, "-o", out], capture_output=True, text=True)
