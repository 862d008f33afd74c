"""What reaches single experts of a vLLM model. Its kernels keep that to themselves, so it is computed once more: the router's choice, which
vLLM makes, and each expert's own gate and up from the checkpoint. For scripts/collect."""

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")  # that are computed here: activation(gate) * up


class Experts:
    """The experts of one layer. `prefix`: what the checkpoint calls them."""

    def __init__(self, runner, prefix, checkpoint, recorder):
        self.routed, self.runner, self.prefix = runner.routed_experts, runner, prefix
        self.checkpoint, self.recorder, self.torch = checkpoint, recorder, recorder.torch
        self.count = self.routed.moe_config.num_logical_experts
        self.wrong = self.why_not()
        if self.wrong is None:
            parallel, size = self.routed.moe_config.moe_parallel_config, self.size()
            first, ranks = (0, parallel.tp_size) if recorder.whole else (parallel.tp_rank, 1)
            self.rows = slice(first * size, (first + ranks) * size)  # of each expert's gate and up
            down = self.routed.ckpt_down_proj_name
            self.names = [f"{prefix}.{expert}.{down}" for expert in range(self.count)]
            for name in self.names:  # also those that no token reaches
                recorder.add(name, self.torch.zeros(0, self.rows.stop - self.rows.start))
        self.watch()

    def tensors_of(self, expert):
        """The gate and the up; None where the checkpoint has no tensors of single experts."""
        parts = self.routed.ckpt_gate_proj_name, self.routed.ckpt_up_proj_name
        names = [f"{self.prefix}.{expert}.{part}.weight" for part in parts]
        return names if all(name in self.checkpoint.files for name in names) else None

    def why_not(self):
        """None, or why inputs of single experts' down_proj can't be computed here."""
        routed, config = self.routed, self.routed.moe_config
        if routed.activation.value not in ACTIVATIONS or config.has_bias or config.swiglu_limit is not None:
            return f"their activation is {routed.activation.value}" + (" with biases" if config.has_bias else "")
        if routed.apply_router_weight_on_input:
            return "the router weighs their inputs"
        if config.moe_parallel_config.use_ep:
            return "each rank has other experts"
        if self.tensors_of(0) is None and f"{self.prefix}.gate_up_proj" not in self.checkpoint.files:
            return f"the checkpoint has neither {self.prefix}.0.{routed.ckpt_gate_proj_name}.weight nor {self.prefix}.gate_up_proj"
        if not self.weights(0, slice(0, 1))[0].dtype.is_floating_point or self.weights(0, slice(0, 1))[0].element_size() < 2:
            return "they are quantized"
        return None

    def size(self):
        """Channels that a rank has of what reaches a down_proj."""
        return self.routed.moe_config.intermediate_size_per_partition_unpadded

    def weights(self, expert, rows):
        """Rows of the gate and of the up, [rows, hidden]."""
        names = self.tensors_of(expert)
        if names:
            return [self.checkpoint.part(name, rows) for name in names]
        tensor = f"{self.prefix}.gate_up_proj"  # [experts, 2 x size, hidden], or [experts, hidden, 2 x size]
        size = self.size() * self.routed.moe_config.moe_parallel_config.tp_size
        both = [slice(part * size + rows.start, part * size + rows.stop) for part in (0, 1)]
        if self.routed.is_fused_checkpoint_transposed:
            return [self.checkpoint.part(tensor, expert, slice(None), part).T for part in both]
        return [self.checkpoint.part(tensor, expert, part) for part in both]

    def watch(self):
        """Has vLLM tell what it gives the kernels: those that are told the choice, and those that make it."""
        told, making = self.routed.forward_modular, self.routed.forward_monolithic

        def forward_modular(x, topk_weights, topk_ids, *rest, **settings):
            self.see(x, topk_ids)
            return told(x, topk_weights, topk_ids, *rest, **settings)

        def forward_monolithic(x, router_logits=None, input_ids=None):
            chosen = self.runner.router.select_experts(hidden_states=x, router_logits=router_logits, topk_indices_dtype=None,
                                                       input_ids=input_ids)[1]
            self.see(x, chosen)
            return making(x, router_logits, input_ids)

        self.routed.forward_modular, self.routed.forward_monolithic = forward_modular, forward_monolithic

    def see(self, x, chosen):
        x = x[..., :self.routed.moe_config.hidden_dim_unpadded]
        self.recorder.see(self.prefix, x)
        if self.wrong is None and self.recorder.writes:
            for expert in chosen.unique().tolist():
                if 0 <= expert < self.count:  # beyond are shared ones that vLLM appends
                    self.recorder.add(self.names[expert], self.inputs(expert, x[(chosen == expert).any(1)]))

    def inputs(self, expert, rows):
        functional = self.torch.nn.functional
        gate, up = (rows @ weight.to(rows).T for weight in self.weights(expert, self.rows))
        name = self.routed.activation.value
        active = functional.silu(gate) if name == "silu" else functional.gelu(gate, approximate="tanh" if name == "gelu_tanh" else "none")
        return active * up
