// Any config.json with any tensors beside it: the weights that they stand for hold together, or
// are refused. Input: config.json on one line, then tensors (tensor_lines.h).

#include "plan/source_weights.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fuzz.h"
#include "tensor_lines.h"

namespace quantmill {
namespace {

void check(const std::vector<SourceTensor>& stored, const std::vector<SourceWeight>& weights) {
  std::set<std::size_t> taken;
  for (const SourceWeight& weight : weights) {
    fuzz::require(taken.insert(weight.codes).second, "codes belong to one weight");
    for (const auto& part : {std::optional(weight.codes),
                             weight.scales,
                             weight.zero_points,
                             weight.global_scale,
                             weight.column_groups}) {
      fuzz::require(!part || *part < stored.size(), "a part is a tensor");
    }
    fuzz::require(weight.is_plain() || weight.scales.has_value(), "codes have scales");
    fuzz::require(!weight.is_plain() || weight.entry.shape == stored[weight.codes].entry.shape,
                  "a plain tensor keeps its shape");
    fuzz::require(weight.block_rows > 0 && weight.block_cols > 0, "blocks have a size");
  }
}

}  // namespace
}  // namespace quantmill

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  const std::string_view text = fuzz::as_text(data, size);
  const std::size_t line = std::min(text.find('\n'), text.size());
  const std::string config(text.substr(0, line));
  const std::vector<SourceTensor> stored = fuzz::tensors_of(text.substr(line));
  fuzz::only_input_errors([&] { check(stored, find_weights(stored, config)); });
  return 0;
}
