"""What scripts/collect does inside vLLM's workers: methods that vLLM adds to its own (worker_extension_cls), called by collective_rpc with
plain values."""
import torch
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.linear import LinearBase

from collecting import vllm_drafter, vllm_experts, vllm_names
from collecting.checkpoint import Checkpoint
from collecting.vllm_recording import Recording


class ModelRecording(Recording):
    """Of the model that a worker runs, or its part of it."""

    def __init__(self, model, folder, prefix, clip, key):
        super().__init__(prefix, clip, key)
        checkpoint = Checkpoint(folder)
        self.hook_linears(model, vllm_names.checkpoint_names(model, checkpoint.files))
        self.hook_head(model)
        self.hook_experts(model, checkpoint)

    def hook_linears(self, model, names):
        modules = {}
        for path, module in model.named_modules(remove_duplicate=False):
            if isinstance(module, LinearBase):
                known = modules.setdefault(module, [])
                known += [name for name in names.get(path, ()) if name not in known]
        unnamed = [module.prefix for module, known in modules.items() if not known]
        if unnamed:
            self.left_out.append(f"linears that are not in the checkpoint under a name that vLLM tells: {', '.join(unnamed[:3])}"
                                 + (f" and {len(unnamed) - 3} more" if len(unnamed) > 3 else ""))
        for module, known in modules.items():
            if known:
                self.recorder.same[known[0]] = known[1:]
                module.register_forward_pre_hook(self.linear_hook(known[0]), with_kwargs=True)
                self.wanted.append(known[0])

    def linear_hook(self, name):
        def record(module, positional, named):
            self.recorder.see(name, self.given(module, positional, named))
        return record

    def hook_head(self, model):
        """The head reads what the whole model gives, for all tokens; vLLM calls it for those alone that it samples."""
        def record(module, given, result):
            if torch.is_tensor(result):
                self.recorder.see("lm_head", result)

        model.register_forward_hook(record)

    def hook_experts(self, model, checkpoint):
        maps, reasons = vllm_names.mappers(model), {}
        for path, runner in model.named_modules():
            if not isinstance(runner, MoERunner):
                continue
            prefix = vllm_names.experts_prefix(runner.layer_name, maps, checkpoint.files)
            if prefix is None:
                reasons.setdefault("they are not in the checkpoint under a name that vLLM tells", []).append(path)
                continue
            experts = vllm_experts.Experts(runner, prefix, checkpoint, self.recorder)
            if experts.wrong:
                reasons.setdefault(experts.wrong, []).append(path)
        for why, paths in reasons.items():
            self.left_out.append(f"what reaches down_proj of single experts, since {why}: {paths[0]}"
                                 + (f" and {len(paths) - 1} more" if len(paths) > 1 else ""))


class RecordingWorker:
    """Methods for vLLM's worker."""

    def start_recording(self, folder, prefix, clip, key, resume, block):
        """Of the drafter if it has blocks of `block` tokens, else of the model. Returns (tokens that an earlier run recorded, lines on
        what will not be recorded, an error or "")"""
        if block:
            self.quantmill_recording = vllm_drafter.DrafterRecording(vllm_drafter.drafter_of(self.model_runner), block, prefix, clip, key)
        else:
            self.quantmill_recording = ModelRecording(self.model_runner.model, folder, prefix, clip, key)
        try:
            done = self.quantmill_recording.progress.resume() if resume else 0
        except ValueError as error:
            return 0, [], str(error)
        return done, self.quantmill_recording.left_out, ""

    def keep_recording(self, tokens):
        self.quantmill_recording.progress.keep(tokens)

    def finish_recording(self):
        return self.quantmill_recording.finish()

    def forget_recording(self):
        """What was kept for a later run, once all ranks have finished."""
        self.quantmill_recording.progress.file.unlink(missing_ok=True)
