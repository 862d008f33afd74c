"""Tunix's Gemma models, and its own loader of their weights. The package itself also imports trainers and what they need, tens
of packages; its models and this loader do with Flax and einops once its __init__ is left out, and without the hub's client."""

import importlib
import importlib.util
import pathlib
import sys
import types

import flax


def package():
    """Names of tunix's modules from here on, without running tunix/__init__.py."""
    tunix = types.ModuleType("tunix")
    tunix.__path__ = [str(pathlib.Path(flax.__file__).parents[1] / "tunix")]
    sys.modules.setdefault("tunix", tunix)
    sys.modules.setdefault("huggingface_hub", types.ModuleType("huggingface_hub"))  # for downloads


package()

from tunix.models import safetensors_loader
from tunix.models.gemma3 import model as gemma3
from tunix.models.gemma3 import params_safetensors as gemma3_parameters
from tunix.models.gemma4 import model as gemma4
from tunix.models.gemma4 import params_safetensors as gemma4_parameters

from qwix_sources import (EXPERT, EXPERTS, FULL_HEAD, FULL_KV_HEADS, HEAD, HEADS, HIDDEN, INNER, KV_HEADS, TOP, VOCAB)


def gemma3_config(source):
    return gemma3.ModelConfig(
        num_layers=source.layers, num_embed=VOCAB, embed_dim=HIDDEN, hidden_dim=INNER, num_heads=HEADS, head_dim=HEAD,
        num_kv_heads=KV_HEADS, sliding_window_size=512, param_dtype="float32")


def gemma4_config(source):
    kinds = {"sliding_attention": gemma4.AttentionType.LOCAL_SLIDING, "full_attention": gemma4.AttentionType.GLOBAL}
    return gemma4.ModelConfig(
        num_layers=len(source.layer_types), num_embed=VOCAB, embed_dim=HIDDEN, hidden_dim=INNER, num_heads=HEADS, head_dim=HEAD,
        num_kv_heads=KV_HEADS, num_global_kv_heads=FULL_KV_HEADS, global_key_size=FULL_HEAD, k_eq_v_global=True,
        sliding_window_size=512, enable_moe=True, num_experts=EXPERTS, num_experts_per_tok=TOP, expert_dim=EXPERT,
        moe_dense_hidden_dim=INNER, attention_pattern=tuple(kinds[kind] for kind in source.layer_types))


MODELS = {"tunix-gemma3": (gemma3.Gemma3, gemma3_config, gemma3_parameters), "tunix-gemma4": (gemma4.Gemma4, gemma4_config, gemma4_parameters)}


def loaded_by_tunix(preset, source, folder):
    """The model that Tunix makes of the unquantized values in this folder."""
    _, config, parameters = MODELS[preset]
    # Its other mode takes all files for BF16.
    return parameters.create_model_from_safe_tensors(str(folder), config(source), mode="original")


def without_casts():
    """Tunix 0.1.7 casts Gemma 4's weights with jnp.astype, which Qwix 0.1.8 does not take for a quantized one, wherever it comes
    from: the call raises. Of the type that they are cast to they need none. Everything else stays Tunix's."""
    def call(self, x):
        weight = self.w.value if self.w_scale is None else self.w.value * self.w_scale
        return gemma4.jnp.einsum(self.einsum_str, x.astype(self.dtype), weight)

    gemma4.Einsum.__call__ = call
