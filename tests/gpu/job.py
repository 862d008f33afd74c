"""Whole jobs on a GPU: every file of the output is the same bytes as on the CPU, but for the record of the run.

On a GPU of CUDA's; without one the test is skipped (exit status 77), or fails if QUANTMILL_REQUIRE_GPU=1. With `emulated` as its
argument, or in QUANTMILL_GPU_BACKEND, it does the same on the emulated GPU, which every machine has. The program says on which it ran.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

from coded_models import HEAD, HEADS, HIDDEN, INNER, CodedModel
from gram_statistics import write_statistics
from jobs import CALIB, PROGRAM, RUN_RECORD, TINY, PreparedTest, hashes

SKIPPED = 77
LAYERS, TOKENS = 2, 128
# What kernels work on at once is cut small: each rank of two threads gets the least that it takes.
SMALLEST_MEMORY = ["--threads", 2, "--gpu-memory", "32M"]
# Each runs kernels that the others don't.
TARGETS = (("mxfp4, the default search", ["--scheme", "mxfp4"]),
           ("mxfp4 scaled for W4A16", ["--scheme", "mxfp4", "--scaling", "awq-grid", "--scale-rule", "even", "--objective", "w4a16"]),
           ("mxfp6-e2m3", ["--scheme", "mxfp6-e2m3"]), ("mxfp8", ["--scheme", "mxfp8"]), ("nvfp4", ["--scheme", "nvfp4"]),
           ("fp8-block", ["--scheme", "fp8-block"]), ("fp8-tensor", ["--scheme", "fp8-tensor"]), ("int8", ["--scheme", "int8"]),
           ("int4-g128", ["--scheme", "int4-g128"]), ("int4-asym-g32 of Quark", ["--scheme", "int4-asym-g32", "--layout", "quark"]),
           ("mxfp4 by GPTQ", ["--scheme", "mxfp4", "--rounding", "gptq"]),
           ("int4-asym-g32 by GPTQ", ["--scheme", "int4-asym-g32", "--scaling", "none", "--rounding", "gptq"]))
SOURCES = (("fp8-block", "mxfp4"), ("fp8-channel", "bf16"), ("int4-asymmetric", "fp8-channel"), ("int8", "f32"), ("mxfp4", "nvfp4"), ("nvfp4", "f16"))


def backend():
    return sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUANTMILL_GPU_BACKEND", "cuda")


def save_statistics(file):
    """Of inputs whose channels go together, as those of models do."""
    random = np.random.default_rng(5)
    widths = {f"layers.{layer}.{name}": width for layer in range(LAYERS)
              for name, width in (("self_attn.q_proj", HIDDEN), ("self_attn.o_proj", HEADS * HEAD), ("mlp.gate_proj", HIDDEN), ("mlp.down_proj", INNER))}
    write_statistics(file, {name: random.standard_normal((TOKENS, 8)) @ random.standard_normal((8, width))
                            + 0.5 * random.standard_normal((TOKENS, width)) for name, width in widths.items()})
    return file


class WholeJobs(PreparedTest):
    def prepare(self):
        cls = type(self)
        cls.model = CodedModel("plain", layers=LAYERS).save(self.folder / "model")
        cls.stats = save_statistics(self.folder / "calib.h5")

    def on_gpu(self, *args, **kwargs):
        out = self.quantize(*args, "--backend", backend(), **kwargs)
        found = json.loads((out / RUN_RECORD).read_text())["backend"]
        self.assertRegex(str(found), f"^{backend()}")
        return out

    def check(self, options, source, stats, *layouts):
        wanted = hashes(self.quantize(*options, "--backend", "cpu", "--threads", 2, source=source, stats=stats))
        for ranks, more in layouts:
            out = self.on_gpu(*options, *more, source=source, stats=stats, ranks=ranks)
            self.assertEqual(hashes(out), wanted, f"{ranks} ranks, {more}")
        return out

    def verify(self, out, source, stats):
        options = ["--stats", stats] if stats else []
        result = self.run_program("verify", out, "--against", source, *options, "--function", "--backend", backend(), "--threads", 2)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_every_scheme_on_one_rank_and_on_two_that_share_the_gpu(self):
        for name, options in TARGETS:
            with self.subTest(name):
                out = self.check(options, self.model, self.stats, (0, SMALLEST_MEMORY), (2, SMALLEST_MEMORY))
                self.verify(out, self.model, self.stats)

    def test_a_drafter_by_default(self):
        out = self.check([], TINY, CALIB, (0, []), (2, []), (3, ["--ranks-per-node", 1, *SMALLEST_MEMORY]), (0, ["--memory", "66M", *SMALLEST_MEMORY]))
        self.verify(out, TINY, CALIB)

    def test_sources_that_are_quantized_already(self):
        for kind, scheme in SOURCES:
            with self.subTest(source=kind, scheme=scheme):
                source = CodedModel(kind).save(self.folder / kind)
                self.check(["--scheme", scheme, "--scaling", "none"], source, None, (0, SMALLEST_MEMORY), (2, SMALLEST_MEMORY))


def missing_gpu():
    """Why there is nothing to test, in the program's words; otherwise empty."""
    with tempfile.TemporaryDirectory(prefix="quantmill-job-") as folder:
        result = subprocess.run([PROGRAM, "quantize", TINY, Path(folder) / "out", "--scaling", "none", "--backend", backend()],
                                capture_output=True, text=True, timeout=300, check=False)
    words = ("no GPU to compute on", "built without CUDA")
    return result.stderr.strip() if result.returncode and any(word in result.stderr for word in words) else ""


def main():
    missing = missing_gpu()
    if missing and os.environ.get("QUANTMILL_REQUIRE_GPU") == "1":
        print(f"FAILED: QUANTMILL_REQUIRE_GPU=1, but {missing}")
        return 1
    if missing:
        print(f"SKIPPED: {missing}")
        return SKIPPED
    print(f"on the backend {backend()}")
    return 0 if unittest.main(argv=sys.argv[:1], exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
