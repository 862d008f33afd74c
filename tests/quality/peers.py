"""One method of another program on a CPU: peers.py PROGRAM METHOD SEQUENCES SOURCE TOKENS OUT

reads SOURCE, quantizes to MXFP4 with as many sequences of TOKENS (a .npz with "calibration") as are said, and writes OUT as
the program does. Says "ready", its CPU seconds and its largest resident size in MB when all that it needs is imported. Runs
in an environment of its own, with PACKAGES.
"""
import argparse
import os
import resource
import sys

PACKAGES = ["accelerate==1.15.0", "amd-quark==0.13", "auto-round==0.15.1", "compressed-tensors==0.19.0", "llmcompressor==0.14.0.1",
            "numpy==2.4.6", "safetensors==0.8.0", "torch==2.13.0", "transformers==5.17.0"]


def ready():
    print("ready", sum(os.times()[:4]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)


def read_model(source):
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()


def quark(method, source, sequences, out):
    import torch
    import transformers  # noqa: F401
    from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors
    ready()
    config = LLMTemplate.get("llama").get_config(scheme="mxfp4", algorithm=None if method == "file2file" else [method],
                                                 exclude_layers=["lm_head"])
    quantizer = ModelQuantizer(config)
    if method == "file2file":
        quantizer.direct_quantize_checkpoint(pretrained_model_path=source, save_path=out, device="cpu")
        return
    model = quantizer.quantize_model(read_model(source), torch.utils.data.DataLoader(list(sequences), batch_size=1))
    with torch.no_grad():
        export_safetensors(quantizer.freeze(model), out)


def llm_compressor(method, source, sequences, out):
    import datasets
    import torch
    import transformers  # noqa: F401
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    ready()
    if not torch.cuda.is_available():  # it pins what it keeps of activations whatever the device is
        torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    options = {"targets": "Linear", "scheme": "MXFP4", "ignore": ["lm_head"]}
    recipe = {"rtn": [QuantizationModifier], "awq": [AWQModifier, QuantizationModifier], "gptq": [GPTQModifier]}[method]
    recipe = [modifier() if modifier is AWQModifier else modifier(**options) for modifier in recipe]
    calibration = {}
    if len(sequences):
        rows = {"input_ids": sequences.tolist(), "attention_mask": torch.ones_like(sequences).tolist()}
        calibration = {"dataset": datasets.Dataset.from_dict(rows), "max_seq_length": sequences.shape[1],
                       "num_calibration_samples": len(sequences)}
    model = read_model(source)
    oneshot(model=model, recipe=recipe, **calibration)
    model.save_pretrained(out, save_compressed=True)


def auto_round(method, source, sequences, out):
    import torch
    from auto_round import AutoRound
    from transformers import AutoTokenizer
    ready()
    batches = torch.utils.data.DataLoader([{"input_ids": sequence} for sequence in sequences], batch_size=4)
    quantizer = AutoRound(read_model(source), AutoTokenizer.from_pretrained(source), scheme="MXFP4", iters=int(method), nsamples=len(sequences),
                          seqlen=sequences.shape[1], batch_size=4, dataset=batches, device_map="cpu", enable_torch_compile=False)
    quantizer.quantize_and_save(out, format="llm_compressor")


PROGRAMS = {"amd-quark": quark, "auto-round": auto_round, "llm-compressor": llm_compressor}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("method")
    parser.add_argument("sequences", type=int)
    parser.add_argument("source")
    parser.add_argument("tokens")
    parser.add_argument("out")
    arguments = parser.parse_args()
    import numpy
    import torch
    sequences = torch.from_numpy(numpy.load(arguments.tokens)["calibration"][:arguments.sequences].astype("int64"))
    PROGRAMS[arguments.program](arguments.method, arguments.source, sequences, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
