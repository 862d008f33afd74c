#include "pipeline/compat.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include "base/error.h"

#include "base/file.h"
#include "pipeline/search.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;
constexpr std::size_t kWorstTensors = 6;

float parse_float_bits(const std::string& hex) {
  std::uint32_t bits = 0;
  const auto [end, failure] = std::from_chars(hex.data(), hex.data() + hex.size(), bits, 16);
  const auto value = std::bit_cast<float>(bits);
  if (failure != std::errc() || end != hex.data() + hex.size() || !(value > 0) || value > 1e30F) {
    throw Error(ErrorCode::kInput, fmt::format("'{}' is not the bits of a positive float", hex));
  }
  return value;
}

}  // namespace

ScaleTable read_compat_scales(const std::filesystem::path& file, const Plan& plan) {
  const std::string text = read_text_file(file, kMaxFileBytes);
  return with_context(file.string(), [&] {
    ScaleTable table = neutral_scales(plan);
    try {
      const auto json = nlohmann::json::parse(text);
      for (const FoldGroup& group : plan.architecture.fold_groups) {
        if (!group.no_fold_reason.empty()) {
          continue;
        }
        const auto& given = json.at(group.name);
        GroupScales& scales = table[group.name];
        scales.s.clear();
        scales.reason.clear();
        scales.alpha = given.value("alpha", 0.0);
        for (const std::string hex : given.at("s_f32_hex")) {
          scales.s.push_back(parse_float_bits(hex));
        }
        if (scales.s.size() != group.num_channels) {
          throw Error(ErrorCode::kInput,
                      fmt::format("group {}: {} scales, but the model has {} channels there",
                                  group.name,
                                  scales.s.size(),
                                  group.num_channels));
        }
      }
    } catch (const nlohmann::json::exception& failure) {
      throw Error(ErrorCode::kInput,
                  fmt::format("not a file of scales (group -> s_f32_hex): {}", failure.what()));
    }
    return table;
  });
}

std::string seed_report(const std::filesystem::path& out,
                        const ScaleTable& scales,
                        const Plan& plan,
                        const std::vector<TensorError>& tensors) {
  std::string text = fmt::format("quantized {} linears -> {}\n", tensors.size(), out.string());
  text += "alpha chosen per group (0 = no scaling, 1 = full activation weighting):\n";
  for (const FoldGroup& group : plan.architecture.fold_groups) {
    if (group.no_fold_reason.empty()) {
      text += fmt::format(" {:<28} alpha={:.2f}\n", group.name, scales.at(group.name).alpha);
    }
  }
  std::vector<TensorError> sorted = tensors;
  std::ranges::stable_sort(sorted, std::ranges::greater(), &TensorError::relative_error);
  text += "worst relative weight error:\n";
  double sum = 0;
  for (const TensorError& tensor : sorted) {
    sum += tensor.relative_error;
  }
  for (std::size_t index = 0; index < std::min(kWorstTensors, sorted.size()); ++index) {
    text += fmt::format(" {:<44} {:.4f}\n", sorted[index].name, sorted[index].relative_error);
  }
  return text + fmt::format(" mean {:.4f} over {} tensors\n",
                            sum / static_cast<double>(sorted.size()),
                            sorted.size());
}

}  // namespace quantmill
