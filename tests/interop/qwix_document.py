"""The way of Qwix's document "Offline Quantization" for the same checkpoints: everything is loaded whole on every device,
then renamed, fused and transposed in Python. The sample's rules, and those that it leaves to its reader (norms, MLPs)."""

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from orbax.checkpoint.experimental import v1 as ocp
from orbax.checkpoint.experimental.model_surgery.transformations import fusing, nesting, renaming

PROJECTIONS = r"((?:self_attn|mlp)\.(?:q|k|v|o|gate_up|down)_proj)"


def transform(tree):
    def transpose(flat):
        for key in list(flat):
            if "embed_tokens" not in key and flat[key].ndim == 2:
                flat[key] = jnp.transpose(flat[key], (1, 0))
        return flat

    steps = [
        renaming.rename_by_regex([(r"^(model\.language_model\.|model\.)", "")]),
        fusing.fuse_by_pattern(pattern=r"^(layers\.\d+\.mlp)\.(gate_proj|up_proj)\.(.+)$", unique_parts=["gate_proj", "up_proj"],
                               fused_unique_part="gate_up_proj", axis=0),
        renaming.rename_by_regex([
            (PROJECTIONS + r"\.weight$", r"\1.kernel.array.qvalue"),
            (PROJECTIONS + r"\.weight_scale_inv$", r"\1.kernel.array.scale"),
            (r"norm\.weight$", "norm.scale"),
            (r"embed_tokens\.weight$", "embed_tokens.embedding"),
            (r"lm_head\.weight$", "lm_head.kernel"),
        ]),
        transpose,
        nesting.unflatten(separator="."),
        nnx.restore_int_paths,
    ]
    for step in steps:
        tree = step(tree)
    return tree


def load(folder, build, inputs, mesh, tile_size):
    context = ocp.Context()
    context.checkpoint_layout = ocp.options.CheckpointLayout.SAFETENSORS
    with context:
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        abstract = {name: jax.ShapeDtypeStruct(entry.shape, entry.dtype, sharding=everywhere)
                    for name, entry in ocp.metadata(folder).metadata.items()}
        tree = transform(ocp.load(folder, abstract_state=abstract))
    rules = qwix.restore_quantization_rules(tree, qwix.QuantizationRule, tile_size=tile_size, act_qtype=None)
    with jax.set_mesh(mesh):
        model = nnx.eval_shape(lambda: qwix.quantize_model(build(), qwix.PtqProvider(rules), inputs))
        nnx.update(model, qwix.process_prequantized_params(tree, model))
    return model
