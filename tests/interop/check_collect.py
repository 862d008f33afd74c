"""scripts/collect on a small real model class: what it records is what the model's linears see, and quantize takes it."""
import os
import pathlib
import re
import subprocess
import sys

import h5py
import torch
from transformers import (LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)

from calibration import differences, read_recorded, write_text, write_tokenizer
from imatrices import import_imatrix, write_imatrix
from report import Report

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"])
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
VOCABULARY = 64
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON)),
    "qwen3-moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**COMMON, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2,
                                                              mlp_only_layers=[1])),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**COMMON, pad_token_id=0)),
}


def save(name, folder):
    torch.manual_seed(5)
    model = MODELS[name]()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    write_tokenizer(folder, VOCABULARY)
    return model


def write_tokens(folder):
    """Text; those of its tokens that are recorded."""
    tokens = [int(t) for t in torch.randint(1, VOCABULARY, (300,), generator=torch.Generator().manual_seed(6))]
    write_text(folder, tokens)
    return tokens[:256]


def collect_command(folder):
    text = folder / "a.txt", folder / "b.jsonl"
    return [ROOT / "scripts" / "collect", folder, *text, "--tokens", "256", "--length", "64", "--device", "cpu"]


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def inputs_of(model, name, tokens, length):
    """Rows that one module saw, caught by a hook of the test's own."""
    caught = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda module, given: caught.append(given[0].reshape(-1, given[0].shape[-1])))
    with torch.no_grad():
        for begin in range(0, len(tokens), length):
            model(input_ids=torch.tensor([tokens[begin:begin + length]]))
    hook.remove()
    return torch.cat(caught).double()


def check_experts(report, name, model, tokens, recorded):
    """Of each expert's down_proj: what its own weights make of the tokens that the router sends there."""
    experts = model.get_submodule("model.layers.0.mlp.experts")
    caught = []
    hook = experts.register_forward_pre_hook(lambda module, given: caught.append(given[:2]))
    with torch.no_grad():
        for begin in range(0, len(tokens), 64):
            model(input_ids=torch.tensor([tokens[begin:begin + 64]]))
    hook.remove()
    wrong = None
    for expert in range(experts.num_experts):
        rows = torch.cat([hidden[(chosen == expert).any(1)] for hidden, chosen in caught])
        gate, up = (rows @ experts.gate_up_proj[expert].T).chunk(2, 1)
        wanted = (torch.nn.functional.silu(gate) * up).detach().double()
        got = recorded[f"model.layers.0.mlp.experts.{expert}.down_proj"]
        if got["count"] != len(rows) or not torch.allclose(got["sqmean"].double(), wanted.square().mean(0), rtol=1e-5):
            wrong = f"expert {expert}: {got['count']} tokens for {len(rows)}, sqmean {got['sqmean'][:3]} for {wanted.square().mean(0)[:3]}"
    report.check(f"collect {name}: what reaches each expert", wrong)


def check_same(report, what, one, two):
    """Every kind of value to 1e-6 of its largest."""
    found, unlike = differences(one, two, one.keys() & two.keys(), ("absmean", "sqmean", "absmax", "gram"))
    largest = max(found.values(), default=0)
    wrong = f"other inputs: {sorted(one.keys() ^ two.keys())}" if one.keys() != two.keys() else None
    wrong = wrong or (f"other tokens or kinds: {unlike[:3]}" if unlike else None)
    wrong = wrong or (None if largest <= 1e-6 else f"they differ by {found}")
    report.check(f"{what}, of {len(one)} inputs: {largest:.1e}", wrong)


def check_tensor_parallel(report, name, command, prefix):
    """Two processes, each with its part of the model, record together what one does."""
    done = run(*TORCHRUN, *command, "-o", f"{prefix}-two")
    merged = {}
    for whole in (prefix, f"{prefix}-two"):
        pathlib.Path(f"{whole}-merged.h5").unlink(missing_ok=True)
        done = run(os.environ["QUANTMILL"], "stats", "import", whole, "-o", f"{whole}-merged.h5") if done.returncode == 0 else done
        merged[whole] = read_recorded(f"{whole}-merged") if done.returncode == 0 else {}
    if done.returncode != 0:
        report.check(f"collect {name}: two processes under torchrun", done.stderr[-800:])
        return
    check_same(report, f"collect {name}: two processes under torchrun record what one does", *merged.values())


def check_resume(report, name, command, prefix):
    """A run that fails at its very end has kept what it recorded."""
    stopped = pathlib.Path(f"{prefix}-stopped")
    blocking = pathlib.Path(f"{stopped}.tp0.pt")
    blocking.mkdir(exist_ok=True)
    first = run(sys.executable, *command, "-o", stopped, "--save-every", "150")
    blocking.rmdir()
    other = run(sys.executable, *command, "-o", stopped, "--resume", "--kv-cache")
    wrong = None if first.returncode and "another model, text or settings" in other.stderr else first.stderr[-200:] + other.stderr[-200:]
    report.check(f"collect {name}: --resume with other settings is refused", wrong)
    kept = torch.load(f"{stopped}.tp0.partial", weights_only=True)["tokens"]
    again = run(sys.executable, *command, "-o", stopped, "--resume")
    wrong = again.stderr[-300:] if again.returncode else None
    if not wrong:
        one, two = (torch.load(f"{file}.tp0.pt", weights_only=True) for file in (prefix, stopped))
        same = one.keys() == two.keys() and all(torch.equal(one[key]["sqmean"], two[key]["sqmean"]) for key in one)
        wrong = None if kept == 192 and same else f"{kept} tokens were kept; the same: {same}"
    report.check(f"collect {name}: --resume goes on to the same statistics", wrong)


def check_grams(report, name, model, tokens, folder):
    """--gram: the second moments that the model's linears see, clipped, in the file that --rounding gptq takes."""
    prefix = WORK / f"grams-{name}"
    command = [*collect_command(folder), "--gram", "--clip", "1.5"]
    done = run(sys.executable, *command, "-o", prefix)
    report.check(f"collect {name}: Gram matrices", None if done.returncode == 0 else done.stderr[-500:])
    with h5py.File(f"{prefix}.h5") as file:
        for module in ("layers.1.self_attn.q_proj", "layers.0.self_attn.o_proj"):
            wanted = 0
            for rows in inputs_of(model, "model." + module, tokens, 64).split(64):
                sizes = rows.square().sum(1)
                wanted = wanted + torch.einsum("t,ti,tj->ij", torch.clamp(1.5 * sizes.median() / sizes, max=1), rows, rows) / 256
            got = torch.from_numpy(file[f"inputs/{module}/gram"][:]).double()
            wanted = wanted[tuple(torch.tril_indices(len(wanted), len(wanted)))]
            difference = float((got - wanted).abs().max() / wanted.abs().max())
            report.check(f"collect {name}: Gram matrix of {module}", None if difference < 1e-5 else f"differs by {difference:.1e}")
    out = WORK / f"grams-{name}-out"
    done = run(os.environ["QUANTMILL"], "quantize", folder, out, "--stats", f"{prefix}.h5", "--rounding", "gptq")
    counted = re.search("gptq: ([0-9]+) of ([0-9]+) quantized tensors", done.stderr)
    # Those of single experts have no Gram matrix.
    expected = None if done.returncode == 0 and counted and int(counted[1]) >= 12 else (done.stdout + done.stderr)[-500:]
    report.check(f"collect {name}: quantize --rounding gptq takes them", expected)
    if name == "qwen3-moe":
        check_grams_in_parallel(report, name, command, prefix)


def check_whole_inputs(report):
    """Under torchrun Phi3 gives every process all channels of what o_proj and down_proj read, and these take their part of them."""
    folder, prefix = WORK / "collect-phi3", WORK / "calib-phi3"
    model = save("phi3", folder)
    tokens = write_tokens(folder)
    done = run(*TORCHRUN, *collect_command(folder), "-o", prefix)
    if done.returncode == 0:
        done = run(os.environ["QUANTMILL"], "stats", "import", prefix, "-o", f"{prefix}.h5")
    if done.returncode != 0:
        report.check("collect phi3: two processes under torchrun", done.stderr[-800:])
        return
    recorded = read_recorded(prefix)
    for module in ("layers.0.self_attn.o_proj", "layers.1.mlp.down_proj"):
        wanted = inputs_of(model, f"model.{module}", tokens, 64).square().mean(0)
        got = recorded["model." + module][0]["sqmean"]
        wrong = f"{len(got)} channels" if len(got) != len(wanted) else None
        wrong = wrong or (None if abs(got / wanted - 1).max() < 1e-5 else "other values")
        report.check(f"collect phi3: two processes that are given all of it record {module} once", wrong)


def check_grams_in_parallel(report, name, command, one):
    """Two processes gather what each has of the channels, are stopped at their end, and go on."""
    prefix = WORK / f"grams-{name}-two"
    command = [*TORCHRUN, *command, "-o", prefix]
    blocking = pathlib.Path(f"{prefix}.h5")
    blocking.mkdir(exist_ok=True)
    stopped = run(*command, "--save-every", "150")
    blocking.rmdir()
    kept = [torch.load(f"{prefix}.tp{rank}.partial", weights_only=True)["tokens"] for rank in range(2)]
    done = run(*command, "--resume")
    if done.returncode or not stopped.returncode or kept != [192, 192]:
        report.check(f"collect {name}: Gram matrices under torchrun", f"{kept} tokens were kept; {stopped.stderr[-400:]} {done.stderr[-400:]}")
        return
    left = sorted(path.name for path in WORK.glob(f"{prefix.name}.tp*"))
    report.check(f"collect {name}: two processes under torchrun leave one file", f"beside it {left}" if left else None)
    check_same(report, f"collect {name}: stopped and resumed, two processes record one's Gram matrices",
               read_recorded(one), read_recorded(prefix))


def check_imatrix(report, name, model, tokens, folder, recorded):
    """What llama.cpp sums of the same tokens, in a file that its Python package writes: the E[x^2] of scripts/collect."""
    sums = {}
    for module, weight in (("model.layers.1.self_attn.v_proj", "blk.1.attn_v"), ("model.layers.0.self_attn.o_proj", "blk.0.attn_output"),
                           ("lm_head", "output")):
        rows = inputs_of(model, module, tokens, 64)
        sums[weight + ".weight"] = (rows.square().sum(0, keepdim=True).numpy(), [len(rows)])
    out, done = import_imatrix(write_imatrix(WORK / f"imatrix-{name}.gguf", sums), folder)
    if done.returncode != 0:
        report.check(f"collect {name}: imatrix", done.stderr[-300:])
        return
    with h5py.File(out) as file:
        for imported, module in (("layers.1.self_attn.qkv_proj", "model.layers.1.self_attn.v_proj"),
                                 ("layers.0.self_attn.o_proj", "model.layers.0.self_attn.o_proj"), ("lm_head", "lm_head")):
            got = torch.from_numpy(file[f"inputs/{imported}/sqmean"][:])
            difference = float((got / recorded[module]["sqmean"].double() - 1).abs().max())
            report.check(f"collect {name}: an imatrix says the same of {module}", None if difference < 1e-6 else f"differs by {difference:.1e}")


def check(report, name):
    folder = WORK / f"collect-{name}"
    model = save(name, folder)
    tokens = write_tokens(folder)
    prefix = WORK / f"calib-{name}"
    command = collect_command(folder)
    done = run(sys.executable, *command, "-o", prefix)
    report.check(f"collect {name}: runs", None if done.returncode == 0 else done.stderr[-500:])
    recorded = torch.load(f"{prefix}.tp0.pt", weights_only=True)
    for module in ("model.layers.1.self_attn.v_proj", "model.layers.0.self_attn.o_proj", "lm_head"):
        rows = inputs_of(model, module, tokens, 64)
        got = recorded[module]
        wrong = None
        if got["count"] != 256:
            wrong = f"{got['count']} tokens"
        for key, values in (("absmean", rows.abs().mean(0)), ("sqmean", rows.square().mean(0)), ("absmax", rows.abs().amax(0))):
            if not torch.allclose(got[key].double(), values, rtol=1e-5):
                wrong = f"{key} differs by {(got[key] - values).abs().max()}"
        report.check(f"collect {name}: {module}", wrong)
    out = WORK / f"collect-{name}-out"
    done = run(os.environ["QUANTMILL"], "quantize", folder, out, "--stats", prefix)
    wrong = None if done.returncode == 0 and "scaled fold groups" in done.stdout else (done.stdout + done.stderr)[-500:]
    report.check(f"collect {name}: quantize takes the statistics", wrong)
    check_imatrix(report, name, model, tokens, folder, recorded)
    if name == "qwen3-moe":
        check_experts(report, name, model, tokens, recorded)
        check_tensor_parallel(report, name, command, prefix)
        check_resume(report, name, command, prefix)
    check_grams(report, name, model, tokens, folder)
    done = run(sys.executable, ROOT / "scripts" / "collect", folder, folder / "config.json", "-o", WORK / "no", "--device", "cpu")
    report.check(f"collect {name}: text that is none is refused", None if done.returncode != 0 else "it was taken")


report = Report()
for name in ("llama", "qwen3-moe"):
    report.section(f"collect {name}", check, name)
report.section("collect phi3", check_whole_inputs)
report.close()
