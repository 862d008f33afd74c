#pragma once

// Stored floating-point elements (BF16, F16, F32) to float and back.

#include <cstddef>
#include <optional>
#include <span>

#include "device/context.h"
#include "kernels/matrix.h"
#include "tensor/dtype.h"

namespace quantmill {

// Whether decode_to_float and encode_from_float know this dtype.
bool is_convertible(DType dtype);

// Decodes out.rows x out.cols elements of `dtype` from `stored` (exactly that many, any alignment).
// F32 may be decoded in place.
// Exact. Returns the first NaN or infinity in row-major order, if any; `out` is filled all the
// same.
std::optional<MatrixPosition> decode_to_float(const Context& context,
                                              DType dtype,
                                              std::span<const std::byte> stored,
                                              FloatMatrix out);

// Encodes to `dtype`, rounding to nearest, ties to even. A finite value beyond the largest becomes
// infinity; the first such position is returned, so that the caller can refuse it.
std::optional<MatrixPosition> encode_from_float(const Context& context,
                                                ConstFloatMatrix values,
                                                DType dtype,
                                                std::span<std::byte> stored);

}  // namespace quantmill
