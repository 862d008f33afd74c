#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/json_events.h"
#include "checkpoint/safetensors.h"

namespace quantmill {

namespace {

std::string json_string(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("{} is not valid UTF-8, so it cannot be written to a safetensors header",
                    quote_name(text)));
  }
}

}  // namespace

SafetensorsHeaderPrinter::SafetensorsHeaderPrinter(
    const std::map<std::string, std::string>& metadata) {
  bytes_ += '{';
  if (!metadata.empty()) {
    bytes_ += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      bytes_ += fmt::format(
          "{}{}:{}", bytes_.back() == '{' ? "" : ",", json_string(key), json_string(value));
    }
    bytes_ += '}';
  }
}

void SafetensorsHeaderPrinter::add(std::string_view name,
                                   DType dtype,
                                   std::span<const std::uint64_t> shape) {
  const std::uint64_t begin = end_;
  const std::optional<std::uint64_t> end = checked_add(begin, tensor_size_bytes(dtype, shape));
  if (!end) {
    throw Error(
        ErrorCode::kInput,
        "the output would have more bytes than 64-bit numbers count; are the shapes right?");
  }
  end_ = *end;
  fmt::format_to(std::back_inserter(bytes_),
                 R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                 bytes_.back() == '{' ? "" : ",",
                 json_string(name),
                 dtype_name(dtype),
                 fmt::join(shape, ","),
                 begin,
                 end_);
}

std::string SafetensorsHeaderPrinter::take() {
  bytes_ += '}';
  bytes_.resize((bytes_.size() + 7) / 8 * 8, ' ');  // the length before it is as long
  const std::uint64_t length = bytes_.size() - sizeof(std::uint64_t);
  if (length > kMaxHeaderBytes) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "the header of one output file would have {} bytes; the format allows {}, so write "
            "more and smaller files with --max-shard-size",
            length,
            kMaxHeaderBytes));
  }
  std::memcpy(bytes_.data(), &length, sizeof length);
  return std::move(bytes_);
}

std::string print_safetensors_header(const std::map<std::string, std::string>& metadata,
                                     const std::vector<TensorEntry>& tensors) {
  SafetensorsHeaderPrinter printer(metadata);
  for (const TensorEntry& tensor : tensors) {
    check_invariant(tensor.begin == printer.end(),
                    "a tensor of the output is not where the one before it ends");
    printer.add(tensor.name, tensor.dtype, tensor.shape);
    check_invariant(tensor.end == printer.end(), "a tensor of the output has not its size");
  }
  return printer.take();
}

}  // namespace quantmill
