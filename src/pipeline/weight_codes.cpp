#include <fmt/format.h>

#include "base/error.h"
#include "pipeline/weight_reader.h"

namespace quantmill {

void WeightReader::code(CodedRows& rows) const {
  const auto as_codes = [](std::span<const std::byte> bytes) {
    return std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  };
  const auto take_scales = [&] {
    rows.group = weight_->block_cols;
    rows.groups = rows.rows == 0 ? 0 : scales_.size() / rows.rows;
    rows.scales = scales_;
  };
  rows.zero_points.clear();
  switch (weight_->encoding) {
    case Encoding::kFp8:
      rows.codes = codes_;
      take_scales();
      return;
    case Encoding::kMx:
      unpack_small_floats(weight_->element, as_codes(codes_), rows);
      unpack_mx_scales(as_codes(scale_bytes_), rows);
      return;
    case Encoding::kNvfp4:
      unpack_small_floats(ElementFormat::kE2m1, as_codes(codes_), rows);
      unpack_nvfp4_scales(as_codes(scale_bytes_),
                          {global_scale_,
                           weight_->divides_by_global_scale ? GlobalScaleUse::kDivides
                                                            : GlobalScaleUse::kMultiplies},
                          rows);
      return;
    case Encoding::kInt8:
    case Encoding::kPackedInt: {
      if (!column_groups_.empty()) {
        throw Error(ErrorCode::kInput,
                    fmt::format("tensor {}: its columns are in groups of an order of their own, "
                                "which Qwix does not know; quantize it anew with --scheme",
                                tensor_->name));
      }
      const std::span<const std::byte> bytes = std::as_bytes(std::span(integers_));
      rows.codes.assign(bytes.begin(), bytes.end());
      rows.zero_points = zero_points_;
      take_scales();
      return;
    }
    case Encoding::kPlain:
      break;
  }
  throw Error(ErrorCode::kInternal, "internal fault: a plain weight has no codes");
}

}  // namespace quantmill
