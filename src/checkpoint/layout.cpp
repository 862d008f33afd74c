#include "checkpoint/layout.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/json_events.h"

namespace quantmill {

namespace {

// The library's enum Dtype, in its order of increasing alignment (safetensors/src/tensor.rs, 0.8):
// files are sorted by it, last first.
constexpr std::array kAlignmentOrder = {
    DType::kBool,       DType::kF4,     DType::kF6E2m3, DType::kF6E3m2, DType::kU8,
    DType::kI8,         DType::kF8E5m2, DType::kF8E4m3, DType::kF8E8m0, DType::kF8E4m3fnuz,
    DType::kF8E5m2fnuz, DType::kI16,    DType::kU16,    DType::kF16,    DType::kBf16,
    DType::kI32,        DType::kU32,    DType::kF32,    DType::kC64,    DType::kF64,
    DType::kI64,        DType::kU64};

std::ptrdiff_t alignment_rank(DType dtype) {
  const auto* found = std::find(kAlignmentOrder.begin(), kAlignmentOrder.end(), dtype);
  check_invariant(found != kAlignmentOrder.end(), "a dtype without a place in a file");
  return found - kAlignmentOrder.begin();
}

std::uint64_t add_sizes(std::uint64_t a, std::uint64_t b) {
  const std::optional<std::uint64_t> sum = checked_add(a, b);
  if (!sum) {
    throw Error(
        ErrorCode::kInput,
        "the output would have more bytes than 64-bit numbers count; are the shapes right?");
  }
  return *sum;
}

OutputShard make_shard(std::string file_name, std::vector<TensorEntry> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& left, const TensorEntry& right) {
    return std::pair(-alignment_rank(left.dtype), std::string_view(left.name)) <
           std::pair(-alignment_rank(right.dtype), std::string_view(right.name));
  });
  std::uint64_t position = 0;
  for (TensorEntry& tensor : tensors) {
    tensor.begin = position;
    tensor.end = add_sizes(position, tensor_size_bytes(tensor.dtype, tensor.shape));
    position = tensor.end;
  }
  std::string header = with_context(file_name, [&] {
    return print_safetensors_header({{"format", "pt"}}, tensors);
  });
  return {std::move(file_name), std::move(header), std::move(tensors)};
}

TensorEntry make_entry(const TensorToPlace& tensor) {
  TensorEntry entry;
  entry.name = tensor.name;
  entry.dtype = tensor.dtype;
  entry.shape = tensor.shape;
  return entry;
}

// Tensors by the file they should live in, files in order of first use.
std::vector<OutputShard> place_by_file(const std::vector<TensorToPlace>& tensors) {
  std::vector<std::pair<std::string, std::vector<TensorEntry>>> files;
  std::unordered_map<std::string, std::size_t> by_name;
  for (const TensorToPlace& tensor : tensors) {
    const auto [found, is_new] = by_name.emplace(tensor.file_name, files.size());
    if (is_new) {
      files.emplace_back(tensor.file_name, std::vector<TensorEntry>());
    }
    files[found->second].second.push_back(make_entry(tensor));
  }
  std::vector<OutputShard> shards;
  for (auto& [file_name, entries] : files) {
    shards.push_back(make_shard(file_name, std::move(entries)));
  }
  return shards;
}

std::vector<OutputShard> place_by_size(const std::vector<TensorToPlace>& tensors,
                                       std::uint64_t max_shard_bytes) {
  std::vector<std::vector<TensorEntry>> parts;
  std::uint64_t filled = 0;
  for (std::size_t first = 0; first < tensors.size();) {
    std::uint64_t size = 0;  // of this tensor and those that stay with it
    std::size_t end = first;
    do {
      size = add_sizes(size, tensor_size_bytes(tensors[end].dtype, tensors[end].shape));
      ++end;
    } while (end < tensors.size() && tensors[end].with_previous);
    if (parts.empty() || (filled > 0 && add_sizes(filled, size) > max_shard_bytes)) {
      parts.emplace_back();
      filled = 0;
    }
    for (; first < end; ++first) {
      parts.back().push_back(make_entry(tensors[first]));
    }
    filled = add_sizes(filled, size);
  }
  std::vector<OutputShard> shards;
  for (std::vector<TensorEntry>& part : parts) {
    const std::size_t number = shards.size() + 1;
    shards.push_back(make_shard(
        parts.size() == 1 ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", number, parts.size()),
        std::move(part)));
  }
  return shards;
}

}  // namespace

std::uint64_t OutputShard::size_bytes() const {
  return header.size() + (tensors.empty() ? 0 : tensors.back().end);
}

std::vector<OutputShard> place_tensors(const std::vector<TensorToPlace>& tensors,
                                       std::uint64_t max_shard_bytes) {
  std::unordered_set<std::string_view> names;
  for (const TensorToPlace& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw Error(
          ErrorCode::kInput,
          fmt::format("two tensors of the output would be called {}; rename or leave out the one "
                      "of the source",
                      quote_name(tensor.name)));
    }
  }
  return max_shard_bytes == 0 ? place_by_file(tensors) : place_by_size(tensors, max_shard_bytes);
}

std::string print_index(const std::vector<OutputShard>& shards) {
  std::uint64_t total_size = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const OutputShard& shard : shards) {
    for (const TensorEntry& tensor : shard.tensors) {
      total_size = add_sizes(total_size, tensor.size_bytes());
      weight_map[tensor.name] = shard.file_name;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total_size}}},
                                {"weight_map", std::move(weight_map)}};
  return index.dump(2, ' ', true) + "\n";
}

}  // namespace quantmill
