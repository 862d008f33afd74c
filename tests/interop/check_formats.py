"""Every format in the libraries that define it: what they write, quantmill reads; what quantmill writes, they read.

Values are compared exactly. Where a library multiplies codes by scales in BF16, both are rounded to BF16 first, and the
table says so. A copy of each file with a fault must be refused or have other values: reading alone shows little.
"""

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than all that is computed here

import shutil

import torch

import folding
import format_makers
import format_models
import format_readers
import format_sources
import mxfp4
import quark_modules
import tiny_models
from format_readers import problem
from report import Report

MAKERS = {"compressed-tensors": format_readers.read_with_compressed_tensors,
          "quark": format_readers.read_with_amd_quark, "fp8": format_readers.read_with_transformers}
# transformers 5.17 holds a layer's experts as one tensor, and takes them apart when it loads, but not in all formats:
# Quark's reader turns linears alone into packed ones, compressed-tensors' multiplies FP8 by scales of rows only,
# takes INT8 for packed, and knows neither MXFP8 nor zero points nor scales of whole tensors beside others.
NOT_IN_TRANSFORMERS = {("qwen3-moe", scheme, layout) for scheme, layout in format_models.TARGETS if layout == "quark"}
NOT_IN_TRANSFORMERS |= {("qwen3-moe", scheme, "compressed-tensors")
                        for scheme in ("fp8-block", "int8", "nvfp4", "mxfp8", "int4-asym-g128")}
# How far logits are from those of the decoded weights, relative. Layouts that are dequantized as they are loaded
# compute the same; else activations are rounded as the section says, with the error that the weights' rounding has.
# Measured once: 0.39 and 0.40, 0.10, 0.19, 0.09, 0.03, and 0.004 for experts that are decoded to BF16.
LOGITS = {"mxfp4": 0.6, "mxfp6-e2m3": 0.2, "mxfp6-e3m2": 0.3, "mxfp8": 0.2, "nvfp4": 0.01, "nvfp4:inputs": 0.6,
          "fp8-tensor": 0.15, "fp8-tensor:inputs": 0.15, "fp8-channel": 0.15, "fp8-block": 0.15, "int8": 0.06,
          "w8a16": 0.01, "w8a16-g128": 0.01, "int4-g128": 0.01, "int4-g32": 0.01, "int4-asym-g128": 0.01,
          "mxfp4+fp8-channel": 0.6, "int4-g128+fp8-channel": 0.15,
          "mxfp4~5.5": 0.6}


def compare(reader, folder, stored, wanted, rounds):
    """(what is wrong or None, the cell of the table). `rounds`: equal after rounding to BF16 is enough."""
    found = problem(reader, folder, stored, wanted)
    if found is None:
        return None, "exact"
    if rounds:
        found = problem(reader, folder, stored, wanted, rounds)
    return found, found or "exact in BF16"


# --- Sources

def read_with_quantmill(folder, _):
    out = folder.with_name(folder.name + "-f32")
    shutil.rmtree(out, ignore_errors=True)
    folding.quantmill("convert", folder, out, "--scheme", "f32")
    return {name: tensor.float() for name, tensor in format_models.tensors(out).items()}


def sources(plain):
    """(maker, what it writes, write(folder), the maker's reader, whether that multiplies in BF16)"""
    for preset in format_sources.PRESETS:
        for dtype in (torch.float32, torch.bfloat16):
            yield ("compressed-tensors", f"{preset} of {str(dtype).removeprefix('torch.')}",
                   lambda folder, preset=preset, dtype=dtype:
                   format_sources.write_with_compressed_tensors(plain, folder, preset, dtype),
                   format_readers.read_with_compressed_tensors, dtype == torch.bfloat16 or preset == "NVFP4A16")
    for scheme in ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "ptpc_fp8"):
        yield ("amd-quark", f"{scheme}, from files",
               lambda folder, scheme=scheme: format_sources.write_with_quark_from_file(plain, folder, scheme),
               format_readers.read_with_amd_quark, False)
    for scheme in ("fp8", "ptpc_fp8", "mxfp6_e2m3", "int4_wo_128", "uint4_wo_128"):
        yield ("amd-quark", f"{scheme}, from a model",
               lambda folder, scheme=scheme: format_sources.write_with_quark_from_model(plain, folder, scheme),
               format_readers.read_with_amd_quark, False)
    for scale_format in (None, "ue8m0"):
        yield ("transformers", f"FP8 blocks, scales {scale_format or 'float32'}",
               lambda folder, form=scale_format: format_sources.write_with_transformers(plain, folder, form),
               format_readers.read_with_transformers, False)
    yield "transformers", "gpt-oss MXFP4, of random codes", format_sources.write_gpt_oss, format_readers.read_with_transformers, False
    yield ("triton", "gpt-oss MXFP4, of weights", lambda folder: format_sources.write_gpt_oss(folder, format_sources.downcast),
           format_readers.read_with_transformers, False)
    yield ("AutoAWQ", "INT4 of 128 with zero points", lambda folder: format_makers.write_with_autoawq(plain, folder),
           format_makers.read_with_autoawq, False)
    for bits, symmetric, reorders in ((4, True, False), (4, False, True), (8, True, False)):
        what = f"INT{bits}{', symmetric' if symmetric else ' with zero points'}{', columns reordered' if reorders else ''}"
        yield ("AutoGPTQ", what, lambda folder, options=(bits, symmetric, reorders): format_makers.write_with_autogptq(plain, folder, *options),
               format_makers.read_with_autogptq, False)
    for preset in format_makers.MODELOPT_PRESETS:
        yield ("ModelOpt", preset, lambda folder, preset=preset: format_makers.write_with_modelopt(plain, folder, preset),
               format_makers.read_with_modelopt, False)


def check_source(report, table, stored, maker, what, write, reader, rounds):
    folder = format_models.WORK / "source"
    write(folder)
    wanted = reader(folder, stored)
    found, cell = compare(read_with_quantmill, folder, stored, wanted, rounds)
    table.append((maker, what, cell))
    report.check(f"{maker} {what}: quantmill reads {len(wanted)} tensors as the maker does", found)
    module = format_models.OTHER_VALUE
    if format_models.is_quantized(format_models.tensors(folder), module):
        broken = format_models.write_copy(folder, "source-broken", format_models.halved_scales)
        seen = problem(read_with_quantmill, broken, stored, wanted, rounds)
        report.check(f"{maker} {what}: halved scales of one module are seen",
                     None if seen == f"other values in {module}.weight" else str(seen))


def check_smoothed(report):
    """ModelOpt's SmoothQuant divides inputs at run time by what the weights were multiplied by; without that, values are others."""
    folder = format_models.WORK / "source"
    format_makers.write_with_modelopt(format_models.WORK / "llama", folder, "INT8_SMOOTHQUANT_CFG")
    try:
        wrong = f"it reads {len(read_with_quantmill(folder, None))} tensors"
    except RuntimeError as error:
        wrong = None if "pre_quant_scale" in str(error) else str(error)
    report.check("ModelOpt INT8_SMOOTHQUANT_CFG: quantmill refuses weights that inputs are scaled for", wrong)


def check_sources(report):
    plain = format_models.WORK / "llama"
    stored = format_models.tensors(plain)
    table = [("written by", "format", "quantmill's values")]
    for source in sources(plain):
        report.section(" ".join(source[:2]), check_source, table, stored, *source)
    report.section("ModelOpt, smoothed", check_smoothed)
    report.table("Sources", table)


# --- Targets

def check_reader(report, what, reader, folder, stored, wanted, rounds):
    """The cell of the table."""
    found, cell = compare(reader, folder, stored, wanted, rounds)
    report.check(f"{what} reads {len(wanted)} tensors as decoded", found)
    if found is None:
        format_models.check_faults(report, what, folder,
                                   lambda broken: problem(reader, broken, stored, wanted, rounds))
    return cell


def check_logits(report, what, scheme, folder, source, wanted):
    """The cell of the table."""
    dtype = format_readers.dtype_in_transformers(folder)
    plain = format_models.write_plain(source, wanted, "plain")
    logits, reference = (format_readers.load_with_transformers(path, dtype)[1] for path in (folder, plain))
    change = ((logits - reference).norm() / reference.norm()).item()
    is_near = change <= LOGITS[scheme]  # a NaN is not
    report.check(f"{what}: logits differ by {change:.1e} from those of the decoded weights",
                 None if is_near else f"more than {LOGITS[scheme]}")
    return f"logits {change:.0e}"


def check_target(report, table, model, scheme, layout):
    source = format_models.WORK / model
    stored = format_models.tensors(source)
    folder = format_models.write_target(source, scheme, layout)
    wanted, _ = format_models.expected(folder, source, scheme)
    if "~" in scheme:
        kinds = len(format_models.settings(folder)["quantization_config"]["layer_quant_config"])
        report.check(f"{model} {scheme} {layout}: modules of more than one scheme", None if kinds > 0 else "there is one")
    as_loaded = format_readers.stacked(wanted)
    # Scales are BF16, and compressed-tensors multiplies in the scales' type; those of NVFP4 it divides in BF16.
    rounds = scheme.startswith(("int4", "w8a16", "nvfp4"))
    what = f"{model} {scheme} {layout}"
    maker = check_reader(report, f"{what}: its maker's library", MAKERS[layout], folder, stored,
                         as_loaded if layout == "fp8" else wanted, rounds)
    cell = "-"
    if (model, scheme, layout) not in NOT_IN_TRANSFORMERS:
        decodes_experts = model == "qwen3-moe" and layout == "compressed-tensors"  # to BF16
        cell = check_reader(report, f"{what}: transformers", format_readers.read_with_transformers, folder, stored,
                            as_loaded, decodes_experts or rounds)
        cell += ", " + check_logits(report, f"{what}: transformers", scheme, folder, source, wanted)
    table.append((scheme, layout, model, maker, cell))
    experts = ", experts" if model == "qwen3-moe" else ""
    report.cell(f"{scheme} {layout}", "maker's library" + experts, maker)
    report.cell(f"{scheme} {layout}", "transformers" + experts, cell if cell != "-" else "does not read it")


def check_targets(report):
    table = [("scheme", "layout", "model", "maker's library", "transformers")]
    for scheme, layout in (*format_models.TARGETS, format_models.CHOSEN):
        for model in format_models.MODELS:
            if format_models.is_made_of(model, scheme, layout):
                report.section(f"{model} {scheme} {layout}", check_target, table, model, scheme, layout)
    report.table("Targets", table)


# --- gpt-oss, whose experts are one tensor a layer

def decoded_blocks(stored):
    """Tensors by their names in the BF16 release, blocks as what they stand for, [experts, in, out]."""
    values = {}
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            base = name.removesuffix("_blocks")
            experts, rows, blocks, _ = tensor.shape
            elements = mxfp4.dequantize(tensor.flatten(0, 1).flatten(1), stored[base + "_scales"].flatten(0, 1))
            values[base] = elements.reshape(experts, rows, blocks * mxfp4.BLOCK).transpose(1, 2)
        elif not name.endswith("_scales"):
            values[name] = tensor.float()
    return values


def gpt_oss_faults(name):
    """{fault of the experts of this name: ((change to the tensors, change to config.json), what is seen, None: anything)}"""
    def halved(tensors):
        tensors[name + "_scales"] -= 1

    def missing(tensors):
        del tensors[name + "_scales"]

    def turned(tensors):
        tensors[name + "_blocks"] = tensors[name + "_blocks"].transpose(1, 2)

    def listed(config):
        config["quantization_config"]["modules_to_not_convert"].append(name.rpartition(".")[0])

    return {"halved scales": ((halved,), f"other values in {name}"), "missing scales": ((missing,), None),
            "blocks of another shape": ((turned,), None), "experts in the list": ((None, listed), None)}


def check_gpt_oss(report):
    source = format_models.WORK / "gpt-oss"
    tiny_models.save("gpt-oss", tiny_models.build("gpt-oss").to(torch.bfloat16), source)
    stored = format_models.tensors(source)
    folder = format_models.WORK / "gpt-oss.mxfp4"
    folding.quantmill("convert", source, folder, "--scheme", "mxfp4", "--layout", "gpt-oss")
    wanted = decoded_blocks(format_models.tensors(folder))
    what = "gpt-oss mxfp4 gpt-oss: transformers"
    found = problem(format_readers.read_with_transformers, folder, stored, wanted, True)
    report.check(f"{what} reads {len(wanted)} tensors as decoded", found)
    name = next(name for name in sorted(wanted) if name + "_scales" in format_models.tensors(folder))

    report.cell("mxfp4 gpt-oss", "transformers, experts", found or "exact in BF16")
    for fault, (changes, seen) in gpt_oss_faults(name).items():
        broken = format_models.write_copy(folder, "gpt-oss.broken", *changes)
        found = problem(format_readers.read_with_transformers, broken, stored, wanted, True)
        report.check(f"{what}: {fault} are seen", None if found and seen in (None, found) else str(found))


# --- Scales of the key-value cache in Quark's layout; what vLLM makes of either layout's: vllm_cache.py

def check_quark_cache(report):
    source = format_models.WORK / "llama"
    stored = format_models.tensors(source)
    folder = format_models.WORK / "cache.quark"
    folding.quantmill("quantize", source, folder, "--scheme", "fp8-channel", "--layout", "quark", "--scaling", "none", "--kv-cache", "fp8",
                      "--stats", format_models.record_inputs(source))
    wanted = {name.removesuffix(".output_scale"): tensor.item() for name, tensor in format_models.tensors(folder).items()
              if name.endswith(".output_scale")}
    found = quark_modules.output_scales(folder, stored)
    report.check(f"amd-quark has the {len(wanted)} scales of the key-value cache",
                 None if found == wanted and len(wanted) == 2 * format_models.SIZES["num_hidden_layers"] else str(found))
    name = format_models.ATTENTION + "v_proj.output_scale"
    broken = format_models.write_copy(folder, "cache.broken", lambda tensors: tensors.pop(name))
    try:
        seen = f"taken, with {len(quark_modules.output_scales(broken, stored))} scales"
    except ValueError as error:
        seen = None if "v_proj.output_quantizer.scale" in str(error) else str(error)
    report.check("amd-quark refuses one without a scale of the cache", seen)


if __name__ == "__main__":
    report = Report()
    format_models.start()
    for model in format_models.MODELS:
        format_models.write_model(model)
    report.section("gpt-oss", check_gpt_oss)
    report.section("sources", check_sources)
    report.section("targets", check_targets)
    report.section("amd-quark's scales of the cache", check_quark_cache)
    report.close()
