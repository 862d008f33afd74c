#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

std::string print_safetensors_header(const std::map<std::string, std::string>& metadata,
                                     const std::vector<TensorEntry>& tensors) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      json += fmt::format(
          "{}{}:{}", json.back() == '{' ? "" : ",", json_string(key), json_string(value));
    }
    json += '}';
  }
  std::uint64_t position = 0;
  for (const TensorEntry& tensor : tensors) {
    check_invariant(tensor.begin == position &&
                        tensor.size_bytes() == tensor_size_bytes(tensor.dtype, tensor.shape),
                    "a tensor of the output is not where the one before it ends");
    position = tensor.end;
    json += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        json.size() == 1 ? "" : ",",
                        json_string(tensor.name),
                        dtype_name(tensor.dtype),
                        fmt::join(tensor.shape, ","),
                        tensor.begin,
                        tensor.end);
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxHeaderBytes) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "the header of one output file would have {} bytes; the format allows {}, so write "
            "more and smaller files with --max-shard-size",
            json.size(),
            kMaxHeaderBytes));
  }
  const std::uint64_t length = json.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + json;
}

}  // namespace quantmill
