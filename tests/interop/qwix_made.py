"""A BF16 model that quantmill quantizes for Qwix with statistics: another scheme in every place, one set of rules for all."""

import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.environ["QUANTMILL_SOURCE_DIR"], "scripts"))

from coded_models import HEAD, HEADS, HIDDEN, INNER, CodedModel
from make_demo_drafter import write_torch_archive
from qwix_models import Model, Spec

# Module -> scheme, tile and type of the codes in Qwix. What servers fuse has one scheme.
SCHEMES = {"0.self_attn.[qkv]_proj": ("int4-asym-g32", 32, "int4"), "0.self_attn.o_proj": ("fp8-tensor", None, "float8_e4m3fn"),
           "0.mlp.[gu]*_proj": ("nvfp4", 16, "float4_e2m1fn"), "0.mlp.down_proj": ("mxfp8", 32, "float8_e4m3fn"),
           "1.self_attn.[qkv]_proj": ("w8a16-g128", 128, "int8"), "1.self_attn.o_proj": ("w8a16", None, "int8"),
           "1.mlp.[gu]*_proj": ("int4-asym-g128", 128, "int4"), "1.mlp.down_proj": ("mxfp4", 32, "float4_e2m1fn")}


def save_statistics(prefix):
    random = np.random.default_rng(9)
    records = {}
    for layer in range(2):
        for name, size in {"self_attn.q_proj": HIDDEN, "self_attn.o_proj": HEADS * HEAD, "mlp.gate_proj": HIDDEN, "mlp.down_proj": INNER}.items():
            absmean = np.exp(random.standard_normal(size)).astype("<f4")
            records[f"model.layers.{layer}.{name}"] = {"absmean": absmean, "sqmean": 2 * absmean**2, "absmax": 8 * absmean, "count": 4096}
    write_torch_archive(prefix.parent / f"{prefix.name}.tp0.pt", records)
    return prefix


def check_made(report, work, loader, tokens):
    folder = work / "made"
    source = CodedModel("plain").save(folder / "source")
    statistics = save_statistics(folder / "calib")

    def made(out, *options):
        command = [os.environ["QUANTMILL"], "quantize", source, folder / out, "--layout", "qwix", "--scale-type", "f32", *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return folder / out

    mixed = [option for module, (scheme, *_) in SCHEMES.items() for option in ("--scheme-for", f"*.{module}={scheme}")]
    out = made("mixed", "--scheme", "mxfp4", "--stats", statistics, "--scaling", "awq-grid", *mixed)
    load_qwix = loader(out)
    found = {(str(rule.weight_qtype), rule.tile_size) for rule in load_qwix.rules(out)}
    wanted = {(kind, tile) for _, tile, kind in SCHEMES.values()}
    report.check("made: a rule for each scheme", None if found == wanted else f"{found}")
    build = lambda: Model(Spec())  # noqa: E731
    full, quantized = load_qwix.load(out, build, use="full"), load_qwix.load(out, build, tokens)
    logits, dequantized = np.asarray(quantized(tokens)), np.asarray(full(tokens))
    difference = np.abs(logits - dequantized).max() / np.abs(dequantized).max()
    report.check("made: quantized it computes what it does dequantized", None if difference <= 1e-5 else f"{difference} apart")
    plain = made("plain", "--scheme", "f32", "--scaling", "none")
    original = np.asarray(loader(plain).load(plain, build, use="full")(tokens))
    error = float(np.linalg.norm(logits - original) / np.linalg.norm(original))
    # Half of the weights have four bits. Of other weights the logits would be more than 1 apart.
    report.check("made: and nearly what the BF16 model does", None if 0 < error < .4 else f"{error} apart")
