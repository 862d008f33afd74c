"""Quantized weights as makers store them, and the values that their codes stand for: what a test of a reader needs.

KINDS has one function for each format: (random, rows, cols) -> ({suffix of the stored tensor: (dtype, array)}, values),
values F32 [rows, cols]. CONFIGS has the quantization_config that says so.
"""
import numpy as np


def e4m3_table():
    """OCP e4m3: sign, 4 exponent bits of bias 7, 3 mantissa bits; 0x7f and 0xff, which are NaN, are not used here."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return (np.where(codes & 128, -1, 1) * magnitude).astype("<f4")


E4M3 = e4m3_table()


def e4m3(codes):
    return E4M3[codes]


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6], "<f4")


def to_bf16(values):
    bits = np.asarray(values, "<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def to_f32(bits):
    return (bits.astype("<u4") << 16).view("<f4")


def spread(scales, shape, block):
    """Each scale over its block of rows and columns."""
    return np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[:shape[0], :shape[1]]


def fp8_codes(random, shape):
    codes = random.integers(0, 256, shape, dtype=np.uint8)
    codes[(codes & 127) == 127] = 0
    return codes


def small(random, shape, center):
    return np.exp(random.normal(center, .5, shape)).astype("<f4")


def fp8_block(random, rows, cols, dtype="F32"):
    codes = fp8_codes(random, (rows, cols))
    scales = small(random, (-(-rows // 128), -(-cols // 128)), -9)
    stored = scales
    if dtype == "BF16":
        stored = to_bf16(scales)
        scales = to_f32(stored)
    return ({".weight": ("F8_E4M3", codes), ".weight_scale_inv": (dtype, stored)},
            e4m3(codes) * spread(scales, codes.shape, (128, 128)))


def fp8_block_bf16(random, rows, cols):
    return fp8_block(random, rows, cols, "BF16")


def fp8_channel(random, rows, cols):
    codes, scales = fp8_codes(random, (rows, cols)), small(random, (rows, 1), -9)
    return {".weight": ("F8_E4M3", codes), ".weight_scale": ("F32", scales)}, e4m3(codes) * scales


def int8(random, rows, cols):
    codes, scales = random.integers(-128, 128, (rows, cols)).astype(np.int8), small(random, (rows, 1), -8)
    return {".weight": ("I8", codes), ".weight_scale": ("F32", scales)}, codes * scales


def pack_nibbles(values):
    """Code + 8 in words of 32 bits along the last axis, the first in the lowest bits."""
    words = (values + 8).reshape(*values.shape[:-1], -1, 8).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))
    return np.bitwise_or.reduce(words, -1).view("<i4")


def int4(random, rows, cols, asymmetric=False):
    codes = random.integers(-8, 8, (rows, cols))
    zeros = random.integers(-8, 8, (rows, cols // 32)) if asymmetric else np.zeros((rows, cols // 32), int)
    stored = to_bf16(small(random, (rows, cols // 32), -5))
    tensors = {".weight_packed": ("I32", pack_nibbles(codes)), ".weight_scale": ("BF16", stored),
               ".weight_shape": ("I64", np.array([rows, cols], "<i8"))}
    if asymmetric:
        tensors[".weight_zero_point"] = ("I32", np.ascontiguousarray(pack_nibbles(zeros.T).T))
    return tensors, (codes - np.repeat(zeros, 32, 1)).astype("<f4") * np.repeat(to_f32(stored), 32, 1)


def int4_asymmetric(random, rows, cols):
    return int4(random, rows, cols, True)


def nibbles(packed):
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def mxfp4(random, rows, cols):
    packed = random.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
    exponents = random.integers(118, 124, (rows, cols // 32)).astype(np.uint8)
    scales = (2.0 ** (exponents.astype(int) - 127)).astype("<f4")
    return {".weight": ("U8", packed), ".weight_scale": ("U8", exponents)}, E2M1[nibbles(packed)] * np.repeat(scales, 32, 1)


def nvfp4(random, rows, cols):
    packed = random.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
    scales = random.integers(40, 80, (rows, cols // 16)).astype(np.uint8)
    whole = small(random, (), -5)
    factors = e4m3(scales) * whole
    return ({".weight": ("U8", packed), ".weight_scale": ("F8_E4M3", scales), ".weight_scale_2": ("F32", whole)},
            E2M1[nibbles(packed)] * np.repeat(factors, 16, 1))


def plain(random, rows, cols):
    stored = to_bf16(random.normal(0, .05, (rows, cols)))
    return {".weight": ("BF16", stored)}, to_f32(stored)


KINDS = {"fp8-block": fp8_block, "fp8-block-bf16": fp8_block_bf16, "fp8-channel": fp8_channel, "int8": int8, "int4": int4,
         "int4-asymmetric": int4_asymmetric, "mxfp4": mxfp4, "nvfp4": nvfp4, "plain": plain}
PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}
FP8_BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CONFIGS = {"fp8-block": FP8_BLOCK, "fp8-block-bf16": FP8_BLOCK,
           "fp8-channel": {"quant_method": "compressed-tensors", "format": "float-quantized"},
           "int8": {"quant_method": "compressed-tensors", "format": "int-quantized"},
           "int4": PACKED, "int4-asymmetric": PACKED, "mxfp4": {"quant_method": "quark"}, "nvfp4": {"quant_method": "modelopt"}}
