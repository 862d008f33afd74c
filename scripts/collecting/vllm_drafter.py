"""What the linears of a DFlash or DFlash2 drafter are given in vLLM. For scripts/collect.

A block is the last token and those to be guessed: its rows pass all layers. Rows of the context, what the target model computed of each
token, pass fc and hidden_norm, and then every layer's k_proj and v_proj, which read them beside a block's. They are recorded as "fc" and
"ctx_kv", once for each token that the target keeps: vLLM also passes those of guesses that it refused, which no block sees. Names are
those of vLLM's modules, as the architecture file has them: q, k, v and gate, up under one."""
import torch
from vllm.model_executor.layers.linear import LinearBase

from collecting.vllm_recording import Recording

CONTEXT = "ctx_kv"


def drafter_of(runner):
    """The drafter of vLLM's second runner or of its first."""
    return next(holder.model for holder in (getattr(runner, "speculator", None), getattr(runner, "drafter", None)) if holder is not None)


class DrafterRecording(Recording):
    def __init__(self, drafter, block, prefix, clip, key):
        super().__init__(prefix, clip, key)
        self.model, self.block = drafter.model, block
        self.taps = None  # what fc was given last
        self.context = None  # states, positions and places in the cache of the context's rows that were given last
        self.in_context = False
        self.hook_block(drafter)
        self.hook_context(drafter)

    def hook_block(self, drafter):
        for path, module in drafter.named_modules():
            if isinstance(module, LinearBase) and module is not getattr(self.model, "fc", None):
                name = path.removeprefix("model.")
                self.wanted.append(name)
                module.register_forward_pre_hook(self.block_hook(name), with_kwargs=True)

    def block_hook(self, name):
        def record(module, positional, named):
            if not self.in_context:  # where a quantized qkv_proj is called too
                self.recorder.see(name, self.given(module, positional, named)[:self.block])
        return record

    def hook_context(self, drafter):
        def see_taps(module, positional, named):
            self.taps = self.given(module, positional, named)

        if hasattr(self.model, "fc"):
            self.model.fc.register_forward_pre_hook(see_taps, with_kwargs=True)
        project = self.model.precompute_and_store_context_kv

        def precompute_and_store_context_kv(context_states, context_positions, context_slot_mapping=None):
            self.context = context_states, context_positions, context_slot_mapping
            self.in_context = True
            project(context_states, context_positions, context_slot_mapping)
            self.in_context = False

        def see_context(module, positional, named):
            positions = named["positions"] if "positions" in named else positional[1]
            self.see_context(positions.flatten()[0])

        self.model.precompute_and_store_context_kv = precompute_and_store_context_kv
        drafter.register_forward_pre_hook(see_context, with_kwargs=True)

    def see_context(self, anchor):
        """Of the context's rows those before the block that begins at `anchor`, and that have a place."""
        states, positions, slots = self.context
        kept = positions < anchor
        slots = slots if isinstance(slots, (list, tuple)) else [slots]
        kept &= torch.stack([places >= 0 for places in slots]).any(0)
        if self.taps is not None:
            self.recorder.see("fc", self.taps[:len(kept)][kept])
        self.recorder.see(CONTEXT, self.model.hidden_norm(states[kept]))
        self.context = self.taps = None
