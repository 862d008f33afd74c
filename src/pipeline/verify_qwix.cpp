#include "pipeline/verify_qwix.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/reader.h"
#include "kernels/convert.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

// A scale that is no number, 0 or below.
std::vector<float> bad_scales(const Checkpoint& checkpoint, const SourceTensor& tensor) {
  std::vector<std::byte> bytes(tensor.entry.size_bytes());
  checkpoint.read(tensor, 0, bytes);
  std::vector<float> values(tensor.entry.num_elements());
  (void)decode_to_float({Backend::kReference, Isa::kPlain},
                        tensor.entry.dtype,
                        bytes,
                        FloatMatrix{values.data(), 1, values.size()});
  std::erase_if(values, [](float value) { return std::isfinite(value) && value >= 0; });
  return values;
}

// What is wrong with one promised tensor; empty: nothing.
std::string check_tensor(const Checkpoint& checkpoint,
                         const std::string& name,
                         const nlohmann::json& promised) {
  const std::optional<std::size_t> index = checkpoint.find(name);
  if (!index) {
    return fmt::format("tensor {}: it is missing", name);
  }
  const SourceTensor& tensor = checkpoint.tensors()[*index];
  const std::string& file = checkpoint.shards()[tensor.shard].file_name;
  if (promised.at("shape") != nlohmann::json(tensor.entry.shape) ||
      promised.at("dtype") != dtype_name(tensor.entry.dtype) || promised.at("file") != file) {
    return fmt::format("tensor {}: {} [{}] in {}, but qwix_abstract.json says otherwise",
                       name,
                       dtype_name(tensor.entry.dtype),
                       fmt::join(tensor.entry.shape, ", "),
                       file);
  }
  if (promised.at("role") == "scale") {
    const std::vector<float> bad = bad_scales(checkpoint, tensor);
    if (!bad.empty()) {
      return fmt::format("tensor {}: a scale is {}", name, bad.front());
    }
  }
  return "";
}

}  // namespace

QwixStructure check_qwix_structure(const std::filesystem::path& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  QwixStructure structure;
  structure.num_tensors = checkpoint.tensors().size();
  structure.num_files = checkpoint.shards().size();
  const std::filesystem::path file = folder / "qwix_abstract.json";
  const std::string text = read_text_file(file, kMaxFileBytes);
  try {
    const nlohmann::json tensors = nlohmann::json::parse(text).at("tensors");
    for (const auto& [name, promised] : tensors.items()) {
      structure.num_quantized += promised.at("role") == "qvalue" ? 1U : 0U;
      std::string finding = check_tensor(checkpoint, name, promised);
      if (!finding.empty()) {
        structure.findings.push_back(std::move(finding));
      }
    }
    for (const SourceTensor& tensor : checkpoint.tensors()) {
      if (!tensors.contains(tensor.entry.name)) {
        structure.findings.push_back(
            fmt::format("tensor {}: qwix_abstract.json does not have it", tensor.entry.name));
      }
    }
  } catch (const nlohmann::json::exception& failure) {
    throw Error(ErrorCode::kInput, fmt::format("{}: {}", file.string(), failure.what()));
  }
  return structure;
}

}  // namespace quantmill
