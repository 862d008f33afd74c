#include "quant/norm_fold.h"

#include <cmath>
#include <cstddef>

#include "kernels/convert.h"

namespace quantmill {
namespace {

// The values as they read back after being stored.
std::vector<float> through_stored(const Context& context, std::vector<float> values, DType stored) {
  std::vector<std::byte> bytes(values.size() * dtype_bits(stored) / 8);
  (void)encode_from_float(
      context, ConstFloatMatrix(values.data(), 1, values.size()), stored, bytes);
  (void)decode_to_float(context, stored, bytes, FloatMatrix{values.data(), 1, values.size()});
  return values;
}

}  // namespace

NormFold fold_norm(const Context& context,
                   std::span<const float> weight,
                   std::span<const float> s,
                   bool plus_one,
                   DType stored) {
  const double offset = plus_one ? 1 : 0;
  std::vector<float> divided;
  for (std::size_t channel = 0; channel < weight.size(); ++channel) {
    divided.push_back(
        static_cast<float>((offset + double{weight[channel]}) / double{s[channel]} - offset));
  }
  NormFold fold{through_stored(context, std::move(divided), stored), {}};
  for (std::size_t channel = 0; channel < weight.size(); ++channel) {
    const double before = offset + double{weight[channel]};
    const double after = offset + double{fold.weight[channel]};
    if (before == 0) {
      fold.weight[channel] = weight[channel];
      fold.effective_s.push_back(s[channel]);
    } else if (after == 0 || !std::isfinite(after)) {
      fold.weight[channel] = weight[channel];
      fold.effective_s.push_back(1);
    } else {
      fold.effective_s.push_back(static_cast<float>(before / after));
    }
  }
  return fold;
}

}  // namespace quantmill
