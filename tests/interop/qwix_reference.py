"""What the parameters of a JAX model must be, from the values of the weights that a CodedModel stored: float32 numpy."""

import numpy as np


def wanted_parameters(model, spec):
    """Name of a parameter -> values, for a CodedModel and a qwix_models.Spec."""
    layers = [layer_parameters(model, f"model.layers.{index}.", spec) for index in range(spec.layers)]
    wanted = {"embed_tokens.embedding": model.values["model.embed_tokens.weight"], "norm.scale": model.values["model.norm.weight"],
              "lm_head.kernel": model.values["lm_head.weight"].T}
    if spec.layers_as == "scan":
        wanted.update({f"layers.{name}": np.stack([layer[name] for layer in layers]) for name in layers[0]})
    else:
        wanted.update({f"layers.{index}.{name}": values for index, layer in enumerate(layers) for name, values in layer.items()})
    return wanted


def layer_parameters(model, at, spec):
    def weight(name):
        return model.values[f"{at}{name}.weight"]

    wanted = {f"{name}.scale": weight(name) for name in ("input_layernorm", "post_attention_layernorm")}
    wanted.update({f"self_attn.{name}_proj.kernel": weight(f"self_attn.{name}_proj").T for name in "qkvo"})
    if not spec.experts:
        gate, up = weight("mlp.gate_proj").T, weight("mlp.up_proj").T
        wanted["mlp.down_proj.kernel"] = weight("mlp.down_proj").T
        wanted.update({"mlp.gate_up_proj.kernel": np.concatenate([gate, up], 1)} if spec.fused
                      else {"mlp.gate_proj.kernel": gate, "mlp.up_proj.kernel": up})
        return wanted
    wanted.update({f"self_attn.{name}.scale": weight(f"self_attn.{name}") for name in ("q_norm", "k_norm")})
    wanted["mlp.gate.kernel"] = weight("mlp.gate").T
    gate, up, down = (np.stack([weight(f"mlp.experts.{expert}.{name}_proj").T for expert in range(spec.experts)])
                      for name in ("gate", "up", "down"))
    if spec.opaque:
        wanted["mlp.experts.gate_up_proj_weight"] = np.concatenate([gate, up], 2)
        wanted["mlp.experts.down_proj_weight"] = down
    else:
        wanted.update({"mlp.experts.gate_proj": gate, "mlp.experts.up_proj": up, "mlp.experts.down_proj": down})
    return wanted
