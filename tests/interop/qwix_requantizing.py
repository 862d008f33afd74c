"""What pull request 354 of Qwix makes of process_prequantized_params, as it stood in August 2026: codes of another type than
the template's, scales of another shape, or zero points on one side only are no longer cast, broadcast or refused, but the
weight is dequantized and quantized again. No release does so yet; this puts the same condition before the released function."""

import contextlib

import numpy as np
import qwix
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict


def is_quantized(_, value):
    return isinstance(value, dict) and "qvalue" in value


def node_at(model, path):
    for key in path:
        if isinstance(key, int) or isinstance(model, (dict, nnx.Dict)):
            model = model[key]
        else:
            model = getattr(model, key, None)
    return model


def differs(stored, template):
    """Whether codes with scales would be quantized again for this part of the template."""
    def part(name):
        return template.get(name) if isinstance(template, dict) else getattr(template, name)

    return (stored["qvalue"].dtype != part("qvalue").dtype or stored["scale"].shape != part("scale").shape
            or ("zero_point" in stored) != (part("zero_point") is not None))


def quantized_again(stored, how):
    """The weight's codes and scales as its template has them, by Qwix's own quantizer."""
    weight = qwix.dequantize(qwix.QArray(**{name: np.asarray(value) for name, value in stored.items()}))
    made = qwix.quantize(weight, how.qtype, channelwise_axes=how.channelwise_axes, tiled_axes=how.tiled_axes,
                         calibration_method=how.calibration_method)
    parts = {"qvalue": made.qvalue, "scale": made.scale, "zero_point": made.zero_point}
    return {name: value for name, value in parts.items() if value is not None}


@contextlib.contextmanager
def requantizing():
    """Within it Qwix does so, and the list that it gives names the parameters that were quantized again."""
    released, names = qwix.process_prequantized_params, []

    def process(tree, model, **options):
        flat = flatten_dict(tree, is_leaf=is_quantized)
        for path, stored in flat.items():
            parent = node_at(model, path[:-1]) if path[-1] == "array" else None
            how = getattr(parent, "how", None)
            template = parent["array"] if isinstance(parent, dict) else getattr(parent, "array", None)
            if is_quantized(path, stored) and template is not None and differs(stored, template):
                names.append(".".join(map(str, path)))
                flat[path] = quantized_again(stored, how)
        return released(unflatten_dict(flat), model, **options)

    qwix.process_prequantized_params = process
    try:
        yield names
    finally:
        qwix.process_prequantized_params = released
