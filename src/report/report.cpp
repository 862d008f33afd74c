#include "report/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "pipeline/json_count.h"
#include "pipeline/load_statistics.h"
#include "pipeline/manifest.h"
#include "pipeline/run_record.h"
#include "plan/architecture.h"
#include "report/names.h"
#include "stats/scales.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMostOutliers = 50;

std::vector<std::pair<std::string, std::uint64_t>> sizes_of(const Json& by_type) {
  std::vector<std::pair<std::string, std::uint64_t>> sizes;
  for (const auto& [type, bytes] : by_type.items()) {
    sizes.emplace_back(type, count_of(bytes));
  }
  std::ranges::stable_sort(sizes, std::ranges::greater(), [](const auto& s) { return s.second; });
  return sizes;
}

void read_kept(const Json& manifest, Report& report) {
  std::map<std::string, KeptReport> by_reason;
  for (const Json& tensor : manifest.value("kept", Json::array())) {
    KeptReport& kept = by_reason[tensor.at("why").get<std::string>()];
    kept.size_bytes += count_of(tensor.at("size_bytes"));
    kept.names.push_back(tensor.at("name"));
  }
  for (auto& [why, kept] : by_reason) {
    kept.why = why;
    report.kept.push_back(std::move(kept));
  }
  std::ranges::stable_sort(report.kept, std::ranges::greater(), &KeptReport::size_bytes);
}

// The error of the chosen scales and of none, where both were tried.
struct GroupErrors {
  double chosen = 0;
  double unscaled = 0;
};

std::optional<GroupErrors> errors_of(const GroupScales& group) {
  for (std::size_t i = 0; group.reason.empty() && i < group.errors.size(); ++i) {
    if (group.alphas[i] == 0 && group.betas[i] == 0) {
      return GroupErrors{*std::ranges::min_element(group.errors), group.errors[i]};
    }
  }
  return std::nullopt;
}

void add_to_histogram(const std::vector<float>& s, std::vector<std::uint64_t>& histogram) {
  histogram.resize(kScaleBins, 0);
  for (const float value : s) {
    const double bin = std::floor(std::log2(value) / kScaleBinWidth) + kScaleBins / 2.0;
    ++histogram[static_cast<std::size_t>(std::clamp(bin, 0.0, kScaleBins - 1.0))];
  }
}

GroupReport describe_group(const std::string& name, const GroupScales& group) {
  GroupReport report;
  report.name = name;
  report.layer = layer_of(name);
  report.kind = kind_of(name);
  report.channels = group.s.size();
  report.not_scaled = group.reason;
  if (group.reason.empty() && std::isfinite(group.alpha) && !group.errors.empty()) {
    report.alpha = group.alpha;
    report.beta = group.beta;
  }
  if (!group.s.empty()) {
    std::vector<float> s = group.s;
    std::ranges::sort(s);
    const auto at = [&](double share) {
      return static_cast<double>(
          s[static_cast<std::size_t>(share * static_cast<double>(s.size() - 1))]);
    };
    report.s_min = s.front();
    report.s_low = at(0.05);
    report.s_median = at(0.5);
    report.s_high = at(0.95);
    report.s_max = s.back();
  }
  return report;
}

void read_groups(const std::filesystem::path& folder, const Json& manifest, Report& report) {
  std::map<std::string, std::uint64_t> tokens;
  for (const Json& group : manifest.at("fold_groups")) {
    if (group.contains("tokens") && !group["tokens"].is_null()) {
      tokens[group.at("name")] = count_of(group["tokens"]);
    }
  }
  for (const auto& [name, scales] : read_scales(folder / kScalesName)) {
    GroupReport group = describe_group(name, scales);
    if (const auto found = tokens.find(name); found != tokens.end()) {
      group.tokens = found->second;
    }
    if (const std::optional<GroupErrors> errors = errors_of(scales)) {
      report.weighted_chosen += errors->chosen;
      report.weighted_unscaled += errors->unscaled;
      if (errors->unscaled > 0) {
        group.weighted_error = errors->chosen / errors->unscaled;
      }
    }
    if (scales.reason.empty()) {
      add_to_histogram(scales.s, report.scale_histogram);
    }
    report.groups.push_back(std::move(group));
  }
  // By layer as a number: names sort 10 before 2.
  std::ranges::stable_sort(report.groups, {}, [](const GroupReport& group) {
    return group.layer ? static_cast<double>(*group.layer) : -1.0;
  });
}

std::optional<OutlierReport> find_outlier(const std::string& input,
                                          const std::string& measure,
                                          std::vector<double> values) {
  if (values.empty()) {
    return std::nullopt;
  }
  OutlierReport report{input, measure, values.size(), 0, 0};
  const auto largest = std::ranges::max_element(values);
  report.largest_channel = static_cast<std::size_t>(largest - values.begin());
  const double most = *largest;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  report.largest_to_median = *middle > 0 ? most / *middle
                             : most > 0  ? std::numeric_limits<double>::infinity()
                                         : 1;
  return report;
}

// From the statistics if they are given, else from what the job weighted columns by.
void read_outliers(const std::filesystem::path& folder,
                   const ReportOptions& options,
                   Report& report) {
  const auto add = [&](const std::optional<OutlierReport>& outlier) {
    if (outlier) {
      report.outliers.push_back(*outlier);
    }
  };
  if (options.statistics) {
    for (const auto& [name, input] :
         load_statistics(*options.statistics, builtin_partition_rule())) {
      add(find_outlier(name, "mean |x|", input.absmean));
    }
  } else {
    for (const auto& [name, squares] : read_importance(folder / kScalesName)) {
      std::vector<double> rms;
      std::ranges::transform(squares, std::back_inserter(rms), [](float square) {
        return std::sqrt(static_cast<double>(square));
      });
      add(find_outlier(name, "rms x", std::move(rms)));
    }
  }
  std::ranges::stable_sort(
      report.outliers, std::ranges::greater(), &OutlierReport::largest_to_median);
  report.outliers.resize(std::min(report.outliers.size(), kMostOutliers));
}

void read_tensors(const Manifest& manifest, Report& report) {
  for (const TensorError& tensor : manifest.tensors) {
    TensorReport entry;
    entry.name = tensor.name;
    entry.layer = layer_of(tensor.name);
    entry.kind = kind_of(tensor.name);
    entry.scheme = tensor.stored_as;
    entry.relative_error = tensor.relative_error;
    entry.activation_weighted_error = tensor.activation_weighted_error;
    report.tensors.push_back(std::move(entry));
  }
}

// Shapes of the quantized tensors and, if asked for, how their codes are used.
void read_codes(const std::filesystem::path& folder, const ReportOptions& options, Report& report) {
  if (std::filesystem::exists(folder / "qwix_abstract.json")) {
    report.no_codes = "codes in layout qwix are not counted";
    return;
  }
  if (!options.codes) {
    report.no_codes = "codes were not read (--no-codes)";
  }
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const std::vector<SourceWeight> weights =
      find_weights(checkpoint.tensors(), checkpoint.config_text());
  std::map<std::string, std::size_t> by_name;
  std::map<std::string, std::string> scheme_of;  // of stored weights, slices too
  for (std::size_t index = 0; index < report.tensors.size(); ++index) {
    const std::string& name = report.tensors[index].name;
    by_name[name] = index;
    scheme_of[name.substr(0, name.find('['))] = report.tensors[index].scheme;
  }
  std::mutex mutex;
  run_indexed(options.num_threads, weights.size(), [&](std::size_t index, int) {
    const SourceWeight& weight = weights[index];
    const auto scheme = scheme_of.find(weight.entry.name);
    if (weight.is_plain() || scheme == scheme_of.end()) {
      return;
    }
    const auto tensor = by_name.find(weight.entry.name);
    CodeCounts counts;
    if (options.codes) {
      counts = count_codes(checkpoint, weight);
    }
    const std::lock_guard lock(mutex);
    if (tensor != by_name.end()) {
      report.tensors[tensor->second].shape = weight.entry.shape;
    }
    if (options.codes) {
      report.codes[scheme->second].add(counts);
      if (tensor != by_name.end()) {
        report.tensors[tensor->second].codes = std::move(counts);
      }
    }
  });
}

Json read_json(const std::filesystem::path& file) {
  try {
    return Json::parse(read_text_file(file, kMaxJsonBytes));
  } catch (const Json::exception& failure) {
    throw Error(ErrorCode::kInput, fmt::format("{}: {}", file.string(), failure.what()));
  }
}

}  // namespace

std::optional<double> TensorReport::signal_to_noise() const {
  return relative_error > 0 ? std::optional(-20 * std::log10(relative_error)) : std::nullopt;
}

std::optional<double> Report::bits_per_weight() const {
  if (parameters == 0) {
    return std::nullopt;
  }
  double bytes = 0;
  for (const auto& [type, size] : after_by_type) {
    bytes += static_cast<double>(size);
  }
  return 8 * bytes / static_cast<double>(parameters);
}

std::optional<double> Report::weighted_error() const {
  return weighted_unscaled > 0 ? std::optional(weighted_chosen / weighted_unscaled) : std::nullopt;
}

std::optional<double> Report::median_error() const {
  if (tensors.empty()) {
    return std::nullopt;
  }
  return tensors[worst_first()[tensors.size() / 2]].relative_error;
}

std::vector<std::size_t> Report::worst_first() const {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, std::ranges::greater(), [&](std::size_t i) { return tensors[i].relative_error; });
  return order;
}

Report make_report(const std::filesystem::path& folder, const ReportOptions& options) {
  const Manifest manifest = read_manifest(folder);
  const Json json = read_json(folder / kManifestName);
  Report report;
  report.name = std::filesystem::absolute(folder / ".").parent_path().filename().string();
  report.program = manifest.program;
  report.recipe_json = manifest.recipe_json;
  report.inputs = manifest.inputs;
  for (const ManifestFile& file : manifest.files) {
    report.files.push_back({file.name, file.size_bytes, file.xxh128});
  }
  if (std::filesystem::exists(folder / kRunRecordName)) {
    report.run_json = read_json(folder / kRunRecordName).dump();
  }
  read_tensors(manifest, report);
  try {
    report.architecture = json.at("architecture");
    report.bytes_before = count_of(json.at("bytes_before"));
    report.bytes_after = count_of(json.at("bytes_after"));
    report.target_json = json.value("target", Json(nullptr)).dump();
    // Older programs did not note what follows.
    const Json by_type = json.value("bytes_by_type", Json::object());
    report.before_by_type = sizes_of(by_type.value("before", Json::object()));
    report.after_by_type = sizes_of(by_type.value("after", Json::object()));
    const Json parameters = json.value("parameters", Json::object());
    report.parameters = count_of(parameters.value("all", Json(0U)));
    report.quantized_parameters = count_of(parameters.value("quantized", Json(0U)));
    read_kept(json, report);
    read_groups(folder, json, report);
  } catch (const Json::exception& failure) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: {}", (folder / kManifestName).string(), failure.what()));
  }
  read_outliers(folder, options, report);
  read_codes(folder, options, report);
  return report;
}

}  // namespace quantmill
