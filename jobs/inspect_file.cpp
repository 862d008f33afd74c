#include "jobs/inspect_file.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/file.h"
#include "pipeline/manifest.h"
#include "stats/scales.h"
#include "stats/store.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;

std::string describe_manifest(const std::filesystem::path& path, bool as_json) {
  if (path.filename() != kManifestName) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: of JSON files only {} is shown", path.string(), kManifestName));
  }
  const Manifest manifest = read_manifest(path.parent_path().empty() ? "." : path.parent_path());
  if (as_json) {
    return read_text_file(path, kMaxBytes);
  }
  std::string text = fmt::format("manifest of {}\nrecipe\n", manifest.program);
  const Json recipe = Json::parse(manifest.recipe_json);
  for (const auto& [key, value] : recipe.items()) {
    text += fmt::format("  {} = {}\n", key, value.dump());
  }
  text += "depends on\n";
  for (const auto& [name, value] : manifest.inputs) {
    text += name == "recipe" ? "" : fmt::format("  {:<44} {}\n", name, value);
  }
  text += "files\n";
  for (const ManifestFile& file : manifest.files) {
    text +=
        fmt::format("  {:<44} {:>12}  {}\n", file.name, format_size(file.size_bytes), file.xxh128);
  }
  text += "quantized tensors, with relative error\n";
  for (const TensorError& tensor : manifest.tensors) {
    text += fmt::format(
        "  {:<56} {:<14} {:.4f}\n", tensor.name, tensor.stored_as, tensor.relative_error);
  }
  return text;
}

std::string describe_scales(const ScaleTable& scales, bool as_json) {
  if (as_json) {
    Json json = Json::object();
    for (const auto& [name, group] : scales) {
      json[name] = {{"s", group.s},
                    {"alphas", group.alphas},
                    {"betas", group.betas},
                    {"errors", group.errors},
                    {"not_scaled", group.reason.empty() ? Json(nullptr) : Json(group.reason)}};
    }
    return json.dump(1) + "\n";
  }
  std::string text = fmt::format(
      "{:<40} {:>8} {:>7} {:>10} {:>10}\n", "fold group", "channels", "alpha", "s min", "s max");
  for (const auto& [name, group] : scales) {
    const auto [smallest, largest] = std::ranges::minmax(group.s);
    text += fmt::format(
        "{:<40} {:>8} {:>7} {:>10.4g} {:>10.4g}{}\n",
        name,
        group.s.size(),
        group.reason.empty() && !group.errors.empty() ? fmt::format("{:.2f}", group.alpha) : "-",
        smallest,
        largest,
        group.reason.empty() ? "" : fmt::format("  not scaled: {}", group.reason));
  }
  return text;
}

// As `stats show`, in short.
std::string describe_statistics(const Statistics& statistics, bool as_json) {
  Json json = Json::object();
  std::string text =
      fmt::format("{:<48} {:>8} {:>10} {:>12}\n", "input", "channels", "tokens", "largest mean");
  for (const auto& [name, input] : statistics) {
    const double largest = *std::ranges::max_element(input.absmean);
    json[name] = {{"channels", input.absmean.size()},
                  {"tokens", input.has_count ? Json(input.count) : Json(nullptr)},
                  {"largest_absmean", largest}};
    text += fmt::format("{:<48} {:>8} {:>10} {:>12.4g}\n",
                        name,
                        input.absmean.size(),
                        input.has_count ? fmt::format("{}", input.count) : "?",
                        largest);
  }
  return as_json ? json.dump(1) + "\n" : text;
}

}  // namespace

std::optional<std::string> inspect_file(const std::filesystem::path& path, bool as_json) {
  if (path.extension() == ".json") {
    return describe_manifest(path, as_json);
  }
  if (path.extension() != ".h5") {
    return std::nullopt;
  }
  if (path.filename() == kScalesName) {
    return describe_scales(read_scales(path), as_json);
  }
  return describe_statistics(read_statistics(path), as_json);
}

}  // namespace quantmill
