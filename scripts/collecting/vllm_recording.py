"""What one of vLLM's workers records, whatever the model. For scripts/collect."""
import pathlib

import torch
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size, tensor_model_parallel_all_gather
from vllm.model_executor.layers.linear import RowParallelLinear

from collecting import recorder


class Recording:
    def __init__(self, prefix, clip, key):
        self.prefix = pathlib.Path(prefix)
        rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        self.recorder = recorder.Recorder(torch, clip, rank, ranks, tensor_model_parallel_all_gather)
        self.progress = recorder.Progress(self.prefix, repr((key, rank)), self.recorder)
        self.left_out = []  # lines
        self.wanted = []  # names under which the inputs of linears will be recorded

    def given(self, module, positional, named):
        """What of a linear's input is recorded."""
        values = positional[0] if positional else next(value for value in named.values() if torch.is_tensor(value))
        split = isinstance(module, RowParallelLinear) and module.tp_size > 1
        return self.recorder.share(values, module.input_size) if split else values

    def finish(self):
        """(file, number of inputs, lines on them); of ranks that have what rank 0 has, ("", 0, [])"""
        if not self.recorder.writes:
            return "", 0, []
        file, statistics = recorder.write(self.prefix, self.recorder)
        lines = recorder.coverage(statistics)
        silent = [name for name in self.wanted if name not in statistics]
        if silent:
            lines.append(f"not recorded, since vLLM gave them nothing: {', '.join(silent[:3])}"
                         + (f" and {len(silent) - 3} more" if len(silent) > 3 else ""))
        return str(file), len(statistics), lines
