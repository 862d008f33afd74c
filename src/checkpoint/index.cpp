#include "checkpoint/index.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/json_events.h"

namespace quantmill {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

void check_file_name(const std::string& tensor, const std::string& file) {
  const std::filesystem::path path(file);
  bool is_inside = !file.empty() && path.is_relative() && path.lexically_normal() == path &&
                   file.find('\0') == std::string::npos;
  for (const std::filesystem::path& part : path) {
    is_inside = is_inside && part != ".." && part != ".";
  }
  if (!is_inside) {
    fail(
        fmt::format("tensor {} is said to be in {}; a file must be named plainly and lie in the "
                    "checkpoint's folder",
                    quote_name(tensor),
                    quote_name(file)));
  }
  if (path.extension() != ".safetensors") {
    fail(
        fmt::format("tensor {} is said to be in {}, which is not a .safetensors file; convert the "
                    "checkpoint to safetensors",
                    quote_name(tensor),
                    quote_name(file)));
  }
}

// Collects { …, "weight_map": {TENSOR: FILE}, … } from JSON events.
class IndexBuilder {
 public:
  void on_event(const JsonEvent& event) {
    switch (event.kind) {
      case JsonEvent::Kind::kStartObject:
        if (depth_ == 1 && is_weight_map_) {
          in_weight_map_ = true;
        } else if (in_weight_map_) {
          fail_type();
        }
        ++depth_;
        return;
      case JsonEvent::Kind::kEndObject:
        --depth_;
        in_weight_map_ = in_weight_map_ && depth_ != 1;
        return;
      case JsonEvent::Kind::kKey:
        on_key(event.text);
        return;
      case JsonEvent::Kind::kString:
        if (in_weight_map_) {
          index_.weight_map.emplace_back(tensor_, event.text);
          return;
        }
        break;
      case JsonEvent::Kind::kStartArray:
      case JsonEvent::Kind::kEndArray:
      case JsonEvent::Kind::kUnsigned:
      case JsonEvent::Kind::kOther:
        break;
    }
    if (in_weight_map_ || (depth_ == 1 && is_weight_map_)) {
      fail_type();
    }
    if (depth_ == 0) {
      fail("it is not a JSON object; the index is damaged");
    }
    depth_ += event.kind == JsonEvent::Kind::kStartArray ? 1 : 0;
    depth_ -= event.kind == JsonEvent::Kind::kEndArray ? 1 : 0;
  }

  CheckpointIndex take() {
    if (index_.weight_map.empty()) {
      fail("it has no weight_map, or an empty one; the index is damaged or not one of safetensors");
    }
    std::unordered_set<std::string_view> tensors;
    tensors.reserve(index_.weight_map.size());
    std::unordered_set<std::string_view> files;
    for (const auto& [tensor, file] : index_.weight_map) {
      if (!tensors.insert(tensor).second) {
        fail(fmt::format("tensor {} is twice in weight_map; the index is damaged",
                         quote_name(tensor)));
      }
      if (files.insert(file).second) {
        check_file_name(tensor, file);
      }
    }
    index_.file_names.assign(files.begin(), files.end());
    std::sort(index_.file_names.begin(), index_.file_names.end());
    return std::move(index_);
  }

 private:
  void on_key(std::string_view text) {
    if (in_weight_map_) {
      tensor_ = text;
    } else if (depth_ == 1) {
      is_weight_map_ = text == "weight_map";
      if (is_weight_map_ && std::exchange(has_weight_map_, true)) {
        fail("weight_map is there twice; the index is damaged");
      }
    }
  }

  [[noreturn]] void fail_type() const {
    fail(in_weight_map_
             ? fmt::format("weight_map of tensor {} is not a string; the index is damaged",
                           quote_name(tensor_))
             : "weight_map is not an object; the index is damaged");
  }

  CheckpointIndex index_;
  std::string tensor_;
  int depth_ = 0;
  bool is_weight_map_ = false;   // the last key at depth 1 was weight_map
  bool in_weight_map_ = false;   // inside its object
  bool has_weight_map_ = false;  // it was there
};

}  // namespace

CheckpointIndex parse_checkpoint_index(std::string_view json) {
  IndexBuilder builder;
  read_json_events(json, [&](const JsonEvent& event) { builder.on_event(event); });
  return builder.take();
}

}  // namespace quantmill
