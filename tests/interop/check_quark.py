"""AMD Quark's own import and transformers' own Quark reader, on a module tree with the checkpoint's names.

Neither library has a DFlash2 class. What they do for one, they do for any tree of torch modules with the checkpoint's
names: turn linears into packed ones as the exclude list says, match names and shapes, unpack and dequantize.
"""

import torch
from transformers import PreTrainedModel, Qwen3Config

import drafters
import quark_modules
from report import Report


class Drafter(PreTrainedModel):
    config_class = Qwen3Config

    def __init__(self, config):
        super().__init__(config)
        quark_modules.add_modules(self, drafters.tensors(drafters.SOURCE))
        self.post_init()

    def _init_weights(self, module):
        """What the checkpoint lacks must not be filled with something plausible."""


def read_with_quark(folder):
    return quark_modules.read(folder, drafters.tensors(drafters.SOURCE))


def read_with_transformers(folder):
    model, info = Drafter.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True)
    if any(info.values()):
        raise ValueError(", ".join(f"{what}: {sorted(map(str, names))}"
                                   for what, names in info.items() if names))
    return quark_modules.values(model)


if __name__ == "__main__":
    report = Report()
    report.section("packed linears", drafters.check_packed)
    report.section("amd-quark", drafters.check_reader, "amd-quark", read_with_quark)
    report.section("transformers", drafters.check_reader, "transformers", read_with_transformers)
    report.close()
