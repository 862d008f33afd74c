"""scripts/collect on a small real model class: what it records is what the model's linears see, and quantize takes it."""
import os
import pathlib
import re
import subprocess
import sys

import h5py
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from imatrices import import_imatrix, write_imatrix
from report import Report

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"])
VOCABULARY = 64
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON)),
    "qwen3-moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**COMMON, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2)),
}


def save(name, folder):
    torch.manual_seed(5)
    model = MODELS[name]()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return model


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


def check_grams(report, name, model, tokens, folder):
    """--gram: the second moments that the model's linears see, clipped, in the file that --rounding gptq takes."""
    prefix = WORK / f"grams-{name}"
    done = run(sys.executable, ROOT / "scripts" / "collect", folder, folder / "a.txt", folder / "b.jsonl", "-o", prefix,
               "--tokens", "256", "--length", "64", "--device", "cpu", "--gram", "--clip", "1.5")
    report.check(f"collect {name}: Gram matrices", None if done.returncode == 0 else done.stderr[-500:])
    with h5py.File(f"{prefix}.h5") as file:
        for module in ("layers.1.self_attn.q_proj", "layers.0.self_attn.o_proj"):
            wanted = 0
            for rows in inputs_of(model, "model." + module, tokens[:256], 64).split(64):
                sizes = rows.square().sum(1)
                wanted = wanted + torch.einsum("t,ti,tj->ij", torch.clamp(1.5 * sizes.median() / sizes, max=1), rows, rows) / 256
            got = torch.from_numpy(file[f"inputs/{module}/gram"][:]).double()
            wanted = wanted[tuple(torch.tril_indices(len(wanted), len(wanted)))]
            difference = float((got - wanted).abs().max() / wanted.abs().max())
            report.check(f"collect {name}: Gram matrix of {module}", None if difference < 1e-5 else f"differs by {difference:.1e}")
    out = WORK / f"grams-{name}-out"
    done = run(os.environ["QUANTMILL"], "quantize", folder, out, "--stats", f"{prefix}.h5", "--rounding", "gptq")
    counted = re.search("gptq: ([0-9]+) of ([0-9]+) quantized tensors", done.stderr)
    # Inputs of single experts are not recorded.
    expected = None if done.returncode == 0 and counted and int(counted[1]) >= 12 else (done.stdout + done.stderr)[-500:]
    report.check(f"collect {name}: quantize --rounding gptq takes them", expected)


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
    tokens = [int(t) for t in torch.randint(1, VOCABULARY, (300,), generator=torch.Generator().manual_seed(6))]
    half = " ".join(f"w{t}" for t in tokens[:150])
    (folder / "a.txt").write_text(half)
    (folder / "b.jsonl").write_text('{"text": "%s"}\n' % " ".join(f"w{t}" for t in tokens[150:]))
    prefix = WORK / f"calib-{name}"
    done = run(sys.executable, ROOT / "scripts" / "collect", folder, folder / "a.txt", folder / "b.jsonl", "-o", prefix,
               "--tokens", "256", "--length", "64", "--device", "cpu")
    report.check(f"collect {name}: runs", None if done.returncode == 0 else done.stderr[-500:])
    recorded = torch.load(f"{prefix}.tp0.pt", weights_only=True)
    for module in ("model.layers.1.self_attn.v_proj", "model.layers.0.self_attn.o_proj", "lm_head"):
        rows = inputs_of(model, module, tokens[:256], 64)
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
    check_imatrix(report, name, model, tokens[:256], folder, recorded)
    check_grams(report, name, model, tokens, folder)
    done = run(sys.executable, ROOT / "scripts" / "collect", folder, folder / "config.json", "-o", WORK / "no", "--device", "cpu")
    report.check(f"collect {name}: text that is none is refused", None if done.returncode != 0 else "it was taken")


report = Report()
for name in MODELS:
    report.section(f"collect {name}", check, name)
report.close()
