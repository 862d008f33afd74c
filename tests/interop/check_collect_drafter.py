"""scripts/collect --engine vllm --target: what a DFlash2 drafter's linears are given while vLLM drafts with it and the target model checks.

What is recorded is held against rows that vLLM's proposer and modules were given, caught by hooks of this test, and against what plain torch
makes of the tokens and the checkpoint. The target model often says the same token, so that it keeps some guesses and refuses others.

Only where it is named as an argument, since it takes minutes: ranks, two processes that share target and drafter.
"""

import inspect
import os
import pathlib
import subprocess

import torch
import transformers
from vllm.model_executor.layers.linear import LinearBase
from vllm.v1.spec_decode.dflash import DFlashProposer

import drafters
import tiny_models
import vllm_drafter
from calibration import differences, read_recorded, write_text, write_tokenizer
from check_collect_vllm import collect, stop_and_resume
from folding import QUANTMILL
from report import run_cases

WORK = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / "collect-drafter"
DRAFT = drafters.config(drafters.SOURCE)
BLOCK = DRAFT["dflash_config"]["block_size"]
OFTEN = 7  # the token that the target model likes
STATISTICS = drafters.SOURCE / "calib" / "calib"  # recorded elsewhere
CLIP = 1.5
ROUNDING = 1e-6  # relative difference of a channel's mean
RANKS = 1e-5  # of the largest channel's: differences add up over the target's layers


def write_target(folder):
    """Arguments of collect; the target model's embeddings."""
    keys = {key: DRAFT[key] for key in vllm_drafter.TARGET_KEYS} | {"num_hidden_layers": DRAFT["num_target_layers"]}
    model = tiny_models.random_model(transformers.Qwen3ForCausalLM, keys)
    direction = torch.randn(DRAFT["hidden_size"], generator=torch.Generator().manual_seed(8))
    embeddings = model.model.embed_tokens.weight.data
    embeddings += 10 * direction
    model.lm_head.weight.data[OFTEN] += 0.1 * direction
    model.save_pretrained(folder)
    write_tokenizer(folder, DRAFT["vocab_size"])
    write_text(folder, [int(t) for t in torch.randint(3, 300, (128,), generator=torch.Generator().manual_seed(6))])
    return [folder / "a.txt", folder / "b.jsonl", "--engine", "vllm", "--target", folder, "--tokens", "128", "--length", "32", "--answer", "24",
            "--dtype", "float32"], embeddings


class Watch:
    """Stands before vLLM's proposer and catches what it and the drafter's linears are given, and what its fc makes of that."""

    def __init__(self):
        self.taps, self.features, self.anchors, self.inputs = [], [], [], {}
        self.kept, self.refused, self.in_block, self.hooked = 0, 0, False, False
        self.propose, self.signature = DFlashProposer.propose, inspect.signature(DFlashProposer.propose)

    def __enter__(self):
        def propose(proposer, *positional, **named):
            given = self.signature.bind(proposer, *positional, **named).arguments
            refused = given.get("num_rejected_tokens_gpu")
            taps = given["target_hidden_states"]
            self.kept = len(taps) - (0 if refused is None else int(refused))
            self.taps.append(taps[:self.kept].clone())
            self.anchors.append(int(given["next_token_ids"]))
            self.refused += len(taps) - self.kept
            self.hook(proposer.model)
            return self.propose(proposer, *positional, **named)

        DFlashProposer.propose = propose
        return self

    def __exit__(self, *error):
        DFlashProposer.propose = self.propose

    def hook(self, drafter):
        if self.hooked:
            # The other way to project a context, of drafters with quantized q, k, v: by the module that a block's rows pass too.
            drafter.model._fused_kv_weight = None
            return
        self.hooked = True

        def catch(name):
            def keep(module, given):
                if self.in_block:
                    self.inputs.setdefault(name, []).append(given[0].clone())
            return keep

        drafter.model.fc.register_forward_hook(lambda module, given, made: self.features.append(made[:self.kept].clone()))
        drafter.register_forward_pre_hook(lambda *_: setattr(self, "in_block", True))
        drafter.register_forward_hook(lambda *_: setattr(self, "in_block", False))
        for name, module in drafter.named_modules():
            if isinstance(module, LinearBase):
                module.register_forward_pre_hook(catch(name.removeprefix("model.")))


def norm(rows, weight):
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + DRAFT["rms_norm_eps"]) * weight


def convolved(rows, weights):
    """Of blocks: each row and the one before it, weighted by channel and by what the row itself says."""
    base = weights["layers.0.attention_conv.base_kernel"][0]
    taps, hidden = base.shape
    made = (rows @ weights["layers.0.attention_conv.kernel_projection.weight"].T).unflatten(-1, (2, taps, -1))[:, :, 0]
    kernel = base + made.repeat_interleave(hidden // made.shape[-1], -1)
    before = torch.nn.functional.pad(rows[:, :-1], (0, 0, 1, 0))
    return kernel[:, :, 0] * rows + kernel[:, :, 1] * before


def plain(watch, embeddings):
    """Rows that plain torch makes in double precision of what the target computed, and of a block's tokens."""
    weights = {name: tensor.double() for name, tensor in drafters.tensors(drafters.SOURCE).items()}
    guesses = [DRAFT["dflash_config"]["mask_token_id"]] * (BLOCK - 1)
    first = norm(embeddings.double()[torch.tensor([[anchor, *guesses] for anchor in watch.anchors])], weights["layers.0.input_layernorm.weight"])
    return {"fc": torch.cat(watch.taps), "ctx_kv": norm(torch.cat(watch.features).double(), weights["hidden_norm.weight"]),
            "layers.0.attention_conv.kernel_projection": first.flatten(0, 1),
            "layers.0.self_attn.qkv_proj": convolved(first, weights).flatten(0, 1)}


def caught(watch):
    """Rows of a block by the name of the linear that was given them."""
    return {name: torch.cat(rows) for name, rows in watch.inputs.items()}


def compare(report, what, rows, found):
    """Of what is recorded the largest difference from that of the rows, relative to a channel's own value."""
    largest, wrong = 0, None if rows else "there are none"
    for name, values in rows.items():
        statistics, count = found.get(name, ({}, 0))
        values = values.double()
        if count != len(values):
            wrong = f"{name} has {count} rows, not {len(values)}"
            continue
        for kind, wanted in (("absmean", values.abs().mean(0)), ("sqmean", values.square().mean(0)), ("absmax", values.abs().amax(0))):
            largest = max(largest, float((statistics[kind] / wanted - 1).abs().max()))
    wrong = wrong or (f"it differs by {largest:.1e}" if not largest <= ROUNDING else None)
    report.check(f"collect dflash2: {len(rows)} inputs as {what}: {largest:.1e}", wrong)


def check_grams(report, blocks, found):
    """Of each block, whose rows weigh at most CLIP times what the median of its eight does."""
    largest = 0
    for name, rows in blocks.items():
        rows = rows.double().unflatten(0, (-1, BLOCK))
        sizes = rows.square().sum(2)
        weights = (CLIP * sizes.median(1, keepdim=True).values / sizes).clamp(max=1)
        wanted = torch.einsum("bt,bti,btj->ij", weights, rows, rows) / found[name][1]
        wanted = wanted[tuple(torch.tril_indices(len(wanted), len(wanted)))]
        largest = max(largest, float((found[name][0]["gram"] - wanted).abs().max() / wanted.abs().max()))
    wrong = None if blocks and largest <= ROUNDING else "that is too much"
    report.check(f"collect dflash2: Gram matrices of {len(blocks)} inputs of a block differ by {largest:.1e} from this check's", wrong)


def check_quantize(report):
    done = subprocess.run([QUANTMILL, "quantize", drafters.SOURCE, WORK / "out", "--stats", WORK / "one.h5", "--rounding", "gptq"],
                          capture_output=True, text=True)
    said = done.stdout + done.stderr
    # Folds: one for the hidden_norm of all layers, and of each layer gate and up, down, o. Of each layer k and v also read the context's
    # rows, whose record is not used, so these are rounded to the nearest.
    taken = done.returncode == 0 and "of 7 scaled fold groups" in said and "gptq: 11 of 15 quantized tensors" in said
    report.check("collect dflash2: quantize takes the statistics, folds with them and rounds by them", None if taken else said[:800])


def check_dflash2(report):
    command, embeddings = write_target(WORK / "target")
    with Watch() as watch:
        wrong = collect(drafters.SOURCE, *command, "-o", WORK / "one", "--gram", "--clip", CLIP)
    tokens, guesses = sum(map(len, watch.taps)), (BLOCK - 1) * len(watch.anchors)
    told = f"{len(watch.anchors)} blocks, {tokens} tokens of context; {watch.refused} of {guesses} guesses refused"
    wrong = wrong or (None if 0 < watch.refused < guesses - 4 * BLOCK else "all or none of them")
    report.check(f"collect dflash2: vLLM drafts and answers: {told}", wrong)
    found = {name.removeprefix("model."): statistics for name, statistics in read_recorded(WORK / "one").items()}
    blocks = caught(watch)
    wanted = {*blocks, "fc", "ctx_kv"}
    report.check(f"collect dflash2: {len(found)} inputs", f"others: {sorted(found.keys() ^ wanted)}" if found.keys() != wanted else None)
    known = torch.load(f"{STATISTICS}.tp0.pt", weights_only=True).keys()
    report.check("collect dflash2: among them are those of other recorders", f"not {sorted(known - found.keys())}" if known - found.keys() else None)
    compare(report, "this check's hooks catch them", blocks, found)
    compare(report, "plain torch computes them", plain(watch, embeddings), found)
    check_grams(report, blocks, found)
    check_quantize(report)


def without_convolution(stored):
    for name in [name for name in stored if "_conv." in name or "candidate_selector." in name]:
        del stored[name]


def check_ranks(report):
    """A DFlash drafter, which needs nothing of this process. Two workers, stopped at their end, which go on: they record what one does."""
    def rename(settings):
        settings["architectures"] = ["DFlashDraftModel"]

    drafter = drafters.write_copy(drafters.SOURCE, "collect-drafter/dflash", without_convolution, rename)
    command, _ = write_target(WORK / "target")
    wrong = collect(drafter, *command, "-o", WORK / "one", "--gram", "--clip", CLIP)
    wrong = wrong or stop_and_resume([drafter, *command, "--gram", "--clip", CLIP], WORK / "two", ".h5", "90", [96, 96])
    report.check("collect dflash: two ranks of vLLM, stopped and resumed", wrong)
    one, two = read_recorded(WORK / "one"), read_recorded(WORK / "two")
    found, wrong = differences(one, two, one.keys(), ("absmean", "sqmean", "absmax", "gram"))
    wrong = f"{wrong[:3]}, {found}" if one.keys() != two.keys() or wrong or max(found.values()) > RANKS else None
    report.check(f"collect dflash: two ranks record what one does, of {len(one)} inputs: {found}", wrong)


if __name__ == "__main__":
    cases = {"dflash2": check_dflash2, "ranks": check_ranks}
    run_cases(WORK, ["dflash2"], lambda report, case: cases[case](report))
