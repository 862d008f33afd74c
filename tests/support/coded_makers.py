"""Weights as further makers store them, beside those of coded_weights: the same kind of functions. What has a scale of the whole
weight has the same one everywhere, as what servers fuse must."""
import numpy as np

from coded_weights import E2M1, e4m3, fp8_codes, nibbles, small, spread, to_bf16, to_f32

WHOLE, SMALL = np.float32(0.00731), np.float32(0.000114)


def small_float(codes, exponent_bits, mantissa_bits, bias):
    """Sign, exponent, mantissa; subnormal below exponent field 1 (OCP MX 1.0, table 1)."""
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    magnitude = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias - mantissa_bits),
                         ((1 << mantissa_bits) + mantissa) * 2.0 ** (exponent - bias - mantissa_bits))
    return (np.where(codes >> (exponent_bits + mantissa_bits) & 1, -1, 1) * magnitude).astype("<f4")


def words(fields, bits, order=None):
    """Fields that count from 0 in words of 32 bits along the last axis, the first (of `order`) in the lowest bits."""
    per_word = 32 // bits
    split = fields.reshape(*fields.shape[:-1], -1, per_word)[..., order or range(per_word)].astype(np.uint32)
    return np.bitwise_or.reduce(split << (bits * np.arange(per_word, dtype=np.uint32)), -1).view("<i4")


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def bf16(random, rows, cols):
    stored = to_bf16(random.normal(0, .05, (rows, cols)))
    return {".weight": ("BF16", stored)}, to_f32(stored)


def f16(random, rows, cols):
    stored = random.normal(0, .05, (rows, cols)).astype("<f2")
    return {".weight": ("F16", stored)}, stored.astype("<f4")


def f32(random, rows, cols):
    stored = random.normal(0, .05, (rows, cols)).astype("<f4")
    return {".weight": ("F32", stored)}, stored


def exponents(random, shape):
    codes = random.integers(112, 118, shape).astype(np.uint8)
    return codes, (2.0 ** (codes.astype(int) - 127)).astype("<f4")


def fp8_block_e8m0(random, rows, cols):
    codes, (stored, scales) = fp8_codes(random, (rows, cols)), exponents(random, (-(-rows // 128), -(-cols // 128)))
    return ({".weight": ("F8_E4M3", codes), ".scale": ("F8_E8M0", stored)}, e4m3(codes) * spread(scales, codes.shape, (128, 128)))


def fp8_tensor(random, rows, cols):
    codes = fp8_codes(random, (rows, cols))
    return {".weight": ("F8_E4M3", codes), ".weight_scale": ("F32", np.array([SMALL]))}, e4m3(codes) * SMALL


def packed(random, rows, cols, bits, group, asymmetric):
    """compressed-tensors' pack-quantized."""
    fields = random.integers(0, 1 << bits, (rows, cols))
    zeros = random.integers(0, 1 << bits, (rows, cols // group)) if asymmetric else np.full((rows, cols // group), 1 << (bits - 1))
    stored = to_bf16(small(random, (rows, cols // group), -1 - bits))
    tensors = {".weight_packed": ("I32", words(fields, bits)), ".weight_scale": ("BF16", stored),
               ".weight_shape": ("I64", np.array([rows, cols], "<i8"))}
    if asymmetric:
        tensors[".weight_zero_point"] = ("I32", np.ascontiguousarray(words(zeros.T, bits).T))
    return tensors, (fields - np.repeat(zeros, group, 1)).astype("<f4") * np.repeat(to_f32(stored), group, 1)


def w8a16(random, rows, cols):
    return packed(random, rows, cols, 8, cols, False)


def int8_g32_asym(random, rows, cols):
    return packed(random, rows, cols, 8, 32, True)


def int4_g128(random, rows, cols):
    return packed(random, rows, cols, 4, 128, False)


def int4_g32(random, rows, cols):
    return packed(random, rows, cols, 4, 32, False)


def int4_asym_g128(random, rows, cols):
    return packed(random, rows, cols, 4, 128, True)


def int4_asym_g32(random, rows, cols):
    return packed(random, rows, cols, 4, 32, True)


def mxfp4(random, rows, cols, name=".weight"):
    codes = random.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
    stored, scales = exponents(random, (rows, cols // 32))
    return {name: ("U8", codes), ".weight_scale": ("U8", stored)}, E2M1[nibbles(codes)] * np.repeat(scales, 32, 1)


def mxfp4_packed(random, rows, cols):
    return mxfp4(random, rows, cols, ".weight_packed")


def mxfp6(random, rows, cols, *format_):
    codes = random.integers(0, 64, (rows, cols))
    word = np.bitwise_or.reduce(codes.reshape(rows, -1, 4) << (6 * np.arange(4)), -1)
    stored, scales = exponents(random, (rows, cols // 32))
    triples = np.stack([word, word >> 8, word >> 16], -1).astype(np.uint8).reshape(rows, -1)
    return {".weight": ("U8", triples), ".weight_scale": ("U8", stored)}, small_float(codes, *format_) * np.repeat(scales, 32, 1)


def mxfp6_e2m3(random, rows, cols):
    return mxfp6(random, rows, cols, 2, 3, 1)


def mxfp6_e3m2(random, rows, cols):
    return mxfp6(random, rows, cols, 3, 2, 3)


def mxfp8(random, rows, cols):
    codes, (stored, scales) = fp8_codes(random, (rows, cols)), exponents(random, (rows, cols // 32))
    return {".weight": ("F8_E4M3", codes), ".weight_scale": ("U8", stored)}, e4m3(codes) * np.repeat(scales, 32, 1)


def nvfp4(random, rows, cols, divides=False):
    codes = random.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
    scales = random.integers(40, 80, (rows, cols // 16)).astype(np.uint8)
    names, whole = ((".weight_packed", ".weight_global_scale"), np.float32(1 / WHOLE)) if divides else ((".weight", ".weight_scale_2"), WHOLE)
    factors = e4m3(scales) / whole if divides else e4m3(scales) * whole
    stored = {names[0]: ("U8", codes), ".weight_scale": ("F8_E4M3", scales), names[1]: ("F32", np.array([whole]))}
    return stored, E2M1[nibbles(codes)] * np.repeat(factors.astype("<f4"), 16, 1)


def nvfp4_packed(random, rows, cols):
    return nvfp4(random, rows, cols, True)


def turned(random, rows, cols, group):
    """Fields, zero points [cols / group, rows] and scales of the same shape."""
    return random.integers(0, 16, (cols, rows)), random.integers(0, 16, (cols // group, rows)), small(random, (cols // group, rows), -5)


def autoawq(random, rows, cols):
    fields, zeros, scales = turned(random, rows, cols, 32)
    scales = scales.astype("<f2")
    return ({".qweight": ("I32", words(fields, 4, AWQ_ORDER)), ".qzeros": ("I32", words(zeros, 4, AWQ_ORDER)), ".scales": ("F16", scales)},
            ((fields - np.repeat(zeros, 32, 0)) * np.repeat(scales.astype("<f4"), 32, 0)).astype("<f4").T)


def gptq(random, rows, cols):
    """Its first version, columns in an order of their own."""
    fields, zeros, scales = turned(random, rows, cols, 32)
    scales, groups = scales.astype("<f2"), random.permutation(cols) // 32
    return ({".qweight": ("I32", np.ascontiguousarray(words(fields.T, 4).T)), ".qzeros": ("I32", words((zeros - 1) % 16, 4)),
             ".scales": ("F16", scales), ".g_idx": ("I32", groups.astype("<i4"))},
            ((fields - zeros[groups]) * scales.astype("<f4")[groups]).astype("<f4").T)


def quark_integers(random, rows, cols, symmetric):
    fields, zeros, scales = turned(random, rows, cols, 32)
    zeros, values = (0 * zeros, (fields ^ 8) - 8) if symmetric else (zeros, fields)
    stored = to_bf16(scales)
    return ({".weight": ("I32", words(fields, 4, AWQ_ORDER)), ".weight_zero_point": ("I32", words(zeros, 4, AWQ_ORDER)),
             ".weight_scale": ("BF16", stored)},
            ((values - np.repeat(zeros, 32, 0)) * np.repeat(to_f32(stored), 32, 0)).astype("<f4").T)


def quark_int4(random, rows, cols):
    return quark_integers(random, rows, cols, True)


def quark_uint4(random, rows, cols):
    return quark_integers(random, rows, cols, False)


def mxfp4_blocks(random, experts, rows, cols):
    """gpt-oss: all experts of a layer; values [experts, rows, cols]."""
    codes = random.integers(0, 256, (experts, rows, cols // 32, 16), dtype=np.uint8)
    stored, scales = exponents(random, (experts, rows, cols // 32))
    return ({"_blocks": ("U8", codes), "_scales": ("U8", stored)}, (E2M1[nibbles(codes)] * scales[..., None]).reshape(experts, rows, cols))
