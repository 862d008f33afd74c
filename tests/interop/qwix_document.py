"""The way of Qwix's document "Offline Quantization" for the same checkpoints: everything is loaded whole on every device,
then renamed, fused and transposed in Python, and parameters that Qwix does not see are overridden. The sample's rules, and
those that it leaves to its reader (norms, MLPs, routers)."""

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
            if "embed_tokens" not in key and flat[key].ndim >= 2:
                flat[key] = jnp.swapaxes(flat[key], -1, -2)
        return flat

    steps = [
        renaming.rename_by_regex([(r"^(model\.language_model\.|model\.)", "")]),
        fusing.fuse_by_pattern(pattern=r"^(layers\.\d+\.mlp)\.(gate_proj|up_proj)\.(.+)$", unique_parts=["gate_proj", "up_proj"],
                               fused_unique_part="gate_up_proj", axis=0),
        renaming.rename_by_regex([
            (PROJECTIONS + r"\.weight$", r"\1.kernel.array.qvalue"),
            (PROJECTIONS + r"\.weight_scale_inv$", r"\1.kernel.array.scale"),
            (r"((?:mlp\.)?experts)\.(gate_up_proj|down_proj)(?:\.weight)?$", r"\1.\2_weight.array.qvalue"),
            (r"((?:mlp\.)?experts)\.(gate_up_proj|down_proj)(?:\.weight_scale_inv|_scale_inv)$", r"\1.\2_weight.array.scale"),
            (r"norm(_\d)?\.weight$", r"norm\1.scale"),
            (r"router\.proj\.weight$", "router.proj.kernel"),
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


def override_opaque_layers(model, mesh, block_size):
    """Experts directly below the layers, which is the document's option A."""
    def quantized(param):
        shape = param.shape
        scales = (*shape[:-2], shape[-2] // block_size, shape[-1] // block_size)
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names[0], None, None))
        return {"array": {"qvalue": nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float8_e4m3fn, sharding=sharding)),
                          "scale": nnx.Param(jax.ShapeDtypeStruct(scales, jnp.bfloat16, sharding=sharding))}}

    for layer in model.layers:
        if hasattr(layer, "experts"):
            layer.experts.gate_up_proj_weight = quantized(layer.experts.gate_up_proj_weight)
            layer.experts.down_proj_weight = quantized(layer.experts.down_proj_weight)


def load(folder, build, inputs, mesh, tile_size, leave_out=()):
    context = ocp.Context()
    context.checkpoint_layout = ocp.options.CheckpointLayout.SAFETENSORS
    with context:
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        abstract = {name: jax.ShapeDtypeStruct(entry.shape, entry.dtype, sharding=everywhere)
                    for name, entry in ocp.metadata(folder).metadata.items() if not name.startswith(tuple(leave_out))}
        tree = transform(ocp.load(folder, abstract_state=abstract))
    rules = qwix.restore_quantization_rules(tree, qwix.QuantizationRule, tile_size=tile_size, act_qtype=None)
    with jax.set_mesh(mesh):
        model = nnx.eval_shape(lambda: qwix.quantize_model(build(), qwix.PtqProvider(rules), inputs))
        override_opaque_layers(model, mesh, tile_size)
        nnx.update(model, qwix.process_prequantized_params(tree, model))
    return model
