#include "jobs/tensor_blocks.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "kernels/codec.h"

namespace quantmill {
namespace {

struct Block {
  std::uint64_t row = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  float scale = 0;
  std::optional<int> zero_point;
  std::vector<float> codes;
};

bool has_integers(const SourceWeight& weight) {
  return weight.encoding == Encoding::kInt8 || weight.encoding == Encoding::kPackedInt;
}

float code_value(bool is_integer, std::byte code) {
  const auto bits = std::to_integer<std::uint8_t>(code);
  return is_integer ? static_cast<float>(static_cast<std::int8_t>(bits))
                    : decode_element(ElementFormat::kE4m3, bits);
}

void for_each_block(ValueReader& reader,
                    const TensorValues& tensor,
                    const RowSpan& rows,
                    const std::function<void(const Block&)>& use) {
  const bool is_integer = has_integers(*tensor.weight);
  CodedRows coded;
  for (std::uint64_t row = rows.begin; row < rows.end; ++row) {
    reader.read_codes({row, row + 1}, coded);
    for (std::size_t group = 0; group < coded.groups; ++group) {
      Block block{row, group * coded.group, 0, coded.scales[group], {}, {}};
      block.end = std::min(coded.cols, block.begin + coded.group);
      if (!coded.zero_points.empty()) {
        block.zero_point = coded.zero_points[group];
      }
      for (std::size_t col = block.begin; col < block.end; ++col) {
        block.codes.push_back(code_value(is_integer, coded.codes[col]));
      }
      use(block);
    }
  }
}

}  // namespace

std::string describe_blocks(ValueReader& reader, const TensorValues& tensor, const RowSpan& rows) {
  std::string text = "  blocks: (code - zero point) * scale is the value\n";
  for_each_block(reader, tensor, rows, [&](const Block& block) {
    text += fmt::format("  row {}, columns {} to {}: scale {:.9g}{}\n    {}\n",
                        block.row,
                        block.begin,
                        block.end - 1,
                        block.scale,
                        block.zero_point ? fmt::format(", zero point {}", *block.zero_point) : "",
                        fmt::join(block.codes, " "));
  });
  return text;
}

std::string blocks_to_json(ValueReader& reader, const TensorValues& tensor, const RowSpan& rows) {
  auto json = nlohmann::ordered_json::array();
  for_each_block(reader, tensor, rows, [&](const Block& block) {
    json.push_back(
        {{"row", block.row},
         {"columns", {block.begin, block.end}},
         {"scale", block.scale},
         {"zero_point",
          block.zero_point ? nlohmann::ordered_json(*block.zero_point) : nlohmann::ordered_json()},
         {"codes", block.codes}});
  });
  return json.dump();
}

}  // namespace quantmill
