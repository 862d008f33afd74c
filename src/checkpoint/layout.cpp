#include "checkpoint/layout.h"

#include <algorithm>
#include <array>
#include <map>
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

// Fills one shard after the other; what is placed is gone from `tensors`.
class Placer {
 public:
  explicit Placer(std::vector<TensorToPlace>& tensors) : tensors_(tensors) {
    placed_.places.resize(tensors.size());
  }

  // `members`: indices of tensors.
  void add_shard(std::string file_name, std::vector<std::size_t> members) {
    std::ranges::sort(members, [&](std::size_t left, std::size_t right) {
      return std::pair(-alignment_rank(tensors_[left].dtype),
                       std::string_view(tensors_[left].name)) <
             std::pair(-alignment_rank(tensors_[right].dtype),
                       std::string_view(tensors_[right].name));
    });
    SafetensorsHeaderPrinter printer(std::map<std::string, std::string>{{"format", "pt"}});
    std::string header = with_context(file_name, [&] {
      for (const std::size_t member : members) {
        // Its memory is free for the header, which is as large.
        const TensorToPlace tensor = std::move(tensors_[member]);
        PlaceInShard& place = placed_.places[member];
        place = {placed_.shards.size(), printer.end(), 0};
        printer.add(tensor.name, tensor.dtype, tensor.shape);
        place.size_bytes = printer.end() - place.file_offset;
      }
      return printer.take();
    });
    for (const std::size_t member : members) {
      placed_.places[member].file_offset += header.size();
    }
    placed_.shards.push_back({std::move(file_name), std::move(header), printer.end()});
  }

  PlacedTensors take() { return std::move(placed_); }

 private:
  std::vector<TensorToPlace>& tensors_;
  PlacedTensors placed_;
};

// Tensors by the file they should live in, files in order of first use.
PlacedTensors place_by_file(std::vector<TensorToPlace>& tensors) {
  std::vector<std::pair<std::string_view, std::vector<std::size_t>>> files;
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const auto [found, is_new] = by_name.emplace(tensors[tensor].file_name, files.size());
    if (is_new) {
      files.emplace_back(tensors[tensor].file_name, std::vector<std::size_t>());
    }
    files[found->second].second.push_back(tensor);
  }
  Placer placer(tensors);
  for (auto& [file_name, members] : files) {
    placer.add_shard(std::string(file_name), std::move(members));
  }
  return placer.take();
}

PlacedTensors place_by_size(std::vector<TensorToPlace>& tensors, std::uint64_t max_shard_bytes) {
  std::vector<std::vector<std::size_t>> parts;
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
      parts.back().push_back(first);
    }
    filled = add_sizes(filled, size);
  }
  Placer placer(tensors);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    placer.add_shard(parts.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, parts.size()),
                     std::move(parts[part]));
  }
  return placer.take();
}

void check_names_differ(const std::vector<TensorToPlace>& tensors) {
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorToPlace& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw Error(
          ErrorCode::kInput,
          fmt::format("two tensors of the output would be called {}; rename or leave out the one "
                      "of the source",
                      quote_name(tensor.name)));
    }
  }
}

// As the library prints JSON: ASCII.
std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true);
}

}  // namespace

std::vector<TensorEntry> OutputShard::tensors() const {
  const std::string_view json = std::string_view(header).substr(sizeof(std::uint64_t));
  return parse_safetensors_header(json, size_bytes()).tensors;
}

PlacedTensors place_tensors(std::vector<TensorToPlace> tensors, std::uint64_t max_shard_bytes) {
  check_names_differ(tensors);
  return max_shard_bytes == 0 ? place_by_file(tensors) : place_by_size(tensors, max_shard_bytes);
}

std::string print_index(const std::vector<OutputShard>& shards) {
  std::uint64_t total_size = 0;
  std::vector<std::pair<std::string, std::size_t>> names;  // and shards
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    total_size = add_sizes(total_size, shards[shard].data_bytes);
    for (TensorEntry& tensor : shards[shard].tensors()) {
      names.emplace_back(std::move(tensor.name), shard);
    }
  }
  std::ranges::sort(names);
  // Not as one value of JSON, which takes a kilobyte a tensor.
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_size);
  for (const auto& [name, shard] : names) {
    text += fmt::format("{}\n    {}: {}",
                        text.ends_with('{') ? "" : ",",
                        json_string(name),
                        json_string(shards[shard].file_name));
  }
  text += names.empty() ? "}\n}\n" : "\n  }\n}\n";
  return text;
}

}  // namespace quantmill
