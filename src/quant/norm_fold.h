#pragma once

// Dividing the weight of a normalisation by s, in the type it is stored in.

#include <span>
#include <vector>

#include "device/context.h"
#include "tensor/dtype.h"

namespace quantmill {

struct NormFold {
  std::vector<float> weight;       // what is stored, exactly representable in the stored type
  std::vector<float> effective_s;  // what the stored weight was really divided by
};

// plus_one: the norm multiplies by 1 + w. weight = round(w / s), or round((1 + w) / s - 1),
// computed in double and rounded to `stored` once; effective_s is the ratio of old to new gain, so
// that readers multiplied by it undo the stored division to within float rounding. A channel whose
// gain is 0, or would become 0 or infinite, keeps its weight, with effective_s 1 (s itself where
// the gain is 0: any s is right there).
NormFold fold_norm(const Context& context,
                   std::span<const float> weight,
                   std::span<const float> s,
                   bool plus_one,
                   DType stored);

}  // namespace quantmill
