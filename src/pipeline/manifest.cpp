#include "pipeline/manifest.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/pattern.h"
#include "base/version.h"
#include "pipeline/json_count.h"
#include "plan/kept.h"
#include "plan/recipe_value.h"
#include "plan/target.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;
constexpr std::size_t kEntryBytes = 256;  // of a tensor, or half of a fold group: about

Json group_to_json(const std::string& name, const GroupScales& scales) {
  Json group;
  group["name"] = name;
  group["channels"] = scales.s.size();
  const bool searched = !scales.errors.empty() && scales.reason.empty();
  group["alpha"] = searched ? Json(scales.alpha) : Json(nullptr);
  group["alphas"] = scales.alphas;
  group["beta"] = searched ? Json(scales.beta) : Json(nullptr);
  group["betas"] = scales.betas;
  group["errors"] = scales.errors;
  if (!scales.s.empty()) {
    const auto [smallest, largest] = std::ranges::minmax(scales.s);
    group["s_min"] = smallest;
    group["s_max"] = largest;
  }
  group["not_scaled"] = scales.reason.empty() ? Json(nullptr) : Json(scales.reason);
  return group;
}

// `"name": [...]` as the last key of an object that was printed with an indent of 1 and without its
// end, one entry after the other: as one value of JSON they would take a kilobyte a tensor.
template <typename Entries, typename ToJson>
void append_list(std::string& text, std::string_view name, const Entries& entries, ToJson to_json) {
  text += fmt::format(",\n \"{}\": [", name);
  bool is_first = true;
  for (const auto& entry : entries) {
    text += is_first ? "\n  " : ",\n  ";
    // Line breaks are the printer's: those in text are escaped.
    text += replace_all(Json(to_json(entry)).dump(1), "\n", "\n  ");
    is_first = false;
  }
  text += is_first ? "]" : "\n ]";
}

// Tokens that the statistics of each fold group were recorded on, where they say so.
std::map<std::string, std::uint64_t> recorded_tokens(const Plan& plan) {
  std::map<std::string, std::uint64_t> tokens;
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (plan.groups[group].tokens) {
      tokens[plan.architecture.fold_groups[group].name] = *plan.groups[group].tokens;
    }
  }
  return tokens;
}

}  // namespace

std::string print_manifest(const Checkpoint& source,
                           const Plan& plan,
                           const Fingerprint& inputs,
                           const ScaleTable& scales,
                           const std::vector<ManifestFile>& files,
                           const std::vector<TensorError>& tensors) {
  Json manifest;
  manifest["manifest_schema"] = 1;
  manifest["program"] = fmt::format("quantmill {}", program_version());
  manifest["architecture"] = plan.architecture.name;
  manifest["recipe"] = recipe_value<Json>(plan.recipe);
  manifest["bytes_before"] = plan.source_bytes;
  manifest["bytes_after"] = plan.output_bytes;
  manifest["bytes_by_type"] = {{"before", source_bytes_by_type(source, plan)},
                               {"after", output_bytes_by_type(plan)}};
  const ParameterCounts parameters = count_parameters(plan);
  manifest["parameters"] = {{"all", parameters.all}, {"quantized", parameters.quantized}};
  if (plan.recipe.target.is_set()) {
    manifest["target"] = Json::parse(target_to_json(plan));
  }
  manifest["inputs"] = inputs;
  std::string text = manifest.dump(1);
  text.resize(text.size() - std::string_view("\n}").size());
  // What is not filled of it takes no memory, but text that grows is copied.
  text.reserve(kEntryBytes * (tensors.size() + 2 * scales.size()));
  append_list(text, "files", files, [](const ManifestFile& file) -> Json {
    return {{"name", file.name}, {"size_bytes", file.size_bytes}, {"xxh128", file.xxh128}};
  });
  const auto tokens = recorded_tokens(plan);
  append_list(text, "fold_groups", scales, [&](const auto& group) {
    Json json = group_to_json(group.first, group.second);
    const auto found = tokens.find(group.first);
    json["tokens"] = found == tokens.end() ? Json(nullptr) : Json(found->second);
    return json;
  });
  append_list(text, "tensors", tensors, [](const TensorError& tensor) -> Json {
    return {{"name", tensor.name},
            {"stored_as", tensor.stored_as},
            {"relative_error", tensor.relative_error},
            {"activation_weighted_error",
             tensor.activation_weighted_error ? Json(*tensor.activation_weighted_error)
                                              : Json(nullptr)}};
  });
  append_list(text, "kept", kept_tensors(plan), [](const KeptTensor& tensor) -> Json {
    return {{"name", tensor.name},
            {"stored_as", tensor.stored_as},
            {"size_bytes", tensor.size_bytes},
            {"why", tensor.why}};
  });
  text += "\n}\n";
  return text;
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kManifestName;
  if (!std::filesystem::is_regular_file(file)) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("{} has no {}; it was not written by quantmill, or the manifest was removed",
                    folder.string(),
                    kManifestName));
  }
  return parse_manifest(read_text_file(file, kMaxManifestBytes), file.string());
}

Manifest parse_manifest(const std::string& text, const std::string& file) {
  try {
    const Json json = Json::parse(text);
    if (json.at("manifest_schema") != 1) {
      throw Error(
          ErrorCode::kInput,
          fmt::format(
              "{}: manifest schema {}, but this program knows 1; use the version that wrote it",
              file,
              json.at("manifest_schema").dump()));
    }
    Manifest manifest;
    manifest.program = json.at("program");
    manifest.recipe_json = json.at("recipe").dump();
    manifest.inputs = json.at("inputs").get<Fingerprint>();
    for (const Json& entry : json.at("files")) {
      manifest.files.push_back(
          {entry.at("name"), count_of(entry.at("size_bytes")), entry.at("xxh128")});
    }
    for (const Json& entry : json.at("tensors")) {
      TensorError tensor{entry.at("name"), entry.at("stored_as"), entry.at("relative_error"), {}};
      // Manifests of older programs lack it.
      if (const auto weighted = entry.find("activation_weighted_error");
          weighted != entry.end() && !weighted->is_null()) {
        tensor.activation_weighted_error = weighted->get<double>();
      }
      manifest.tensors.push_back(std::move(tensor));
    }
    return manifest;
  } catch (const Json::exception& failure) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: not a manifest of quantmill: {}", file, failure.what()));
  }
}

}  // namespace quantmill
