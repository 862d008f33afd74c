#pragma once

// How codes come out in layout qwix: one a byte, in the types that Orbax reads. Exact for every
// code: int4 in I8, e2m1 and the six-bit elements of MX in F8_E4M3.

#include <cstdint>
#include <string_view>

#include "plan/plan.h"

namespace quantmill {

struct QwixCodes {
  std::string_view logical_type;    // as JAX spells it
  DType dtype = DType::kI8;         // what is stored
  DType scale_dtype = DType::kF32;  // that holds every scale exactly
  std::uint64_t block_rows = 1;     // outputs and inputs that share a scale; the last block may be
  std::uint64_t block_cols = 1;     // smaller
  bool has_zero_points = false;
};

// Of a work that is quantized: the source's codes if they are carried over, the scheme's otherwise.
QwixCodes qwix_codes(const Checkpoint& checkpoint, const Plan& plan, const TensorWork& work);

}  // namespace quantmill
