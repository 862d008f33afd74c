#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/names.h"
#include "report/page_parts.h"
#include "report/print.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json histogram_to_json(const CodeCounts& counts) {
  Json magnitudes = Json::array();
  for (const auto& [magnitude, count] : counts.magnitudes) {
    magnitudes.push_back({magnitude, count});
  }
  Json exponents = Json::array();
  for (const auto& [exponent, count] : counts.scale_exponents) {
    exponents.push_back({exponent, count});
  }
  return {{"tensors", counts.tensors},
          {"elements", counts.elements},
          {"zeros", counts.zeros},
          {"largest", counts.largest},
          {"magnitudes", magnitudes},
          {"scale_exponents", exponents}};
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

Json tensor_to_json(const TensorReport& tensor) {
  Json json = {{"name", tensor.name},
               {"layer", or_null(tensor.layer)},
               {"kind", tensor.kind},
               {"scheme", tensor.scheme},
               {"shape", tensor.shape},
               {"relative_error", tensor.relative_error},
               {"activation_weighted_error", or_null(tensor.activation_weighted_error)},
               {"snr_db", or_null(tensor.signal_to_noise())}};
  if (tensor.codes) {
    const CodeCounts& codes = *tensor.codes;
    json["largest_share"] = share(codes.largest, codes.elements);
    json["zero_share"] = share(codes.zeros, codes.elements);
    if (!codes.scale_exponents.empty()) {
      json["scale_exponents"] = {codes.scale_exponents.begin()->first,
                                 codes.scale_exponents.rbegin()->first};
    }
  }
  return json;
}

Json group_to_json(const GroupReport& group) {
  return {{"name", group.name},
          {"layer", or_null(group.layer)},
          {"kind", group.kind},
          {"expert_of", without_expert(group.name)},
          {"channels", group.channels},
          {"alpha", or_null(group.alpha)},
          {"beta", or_null(group.beta)},
          {"not_scaled", group.not_scaled.empty() ? Json(nullptr) : Json(group.not_scaled)},
          {"tokens", or_null(group.tokens)},
          {"weighted_error", or_null(group.weighted_error)},
          {"s", {group.s_min, group.s_low, group.s_median, group.s_high, group.s_max}}};
}

Json summary_to_json(const Report& report) {
  return {
      {"bytes_before", report.bytes_before},
      {"bytes_after", report.bytes_after},
      {"parameters", report.parameters},
      {"quantized_parameters", report.quantized_parameters},
      {"bits_per_weight", or_null(report.bits_per_weight())},
      {"quantized_tensors", report.tensors.size()},
      {"median_error", or_null(report.median_error())},
      {"worst_error",
       report.tensors.empty() ? Json(nullptr)
                              : Json(report.tensors[report.worst_first().front()].relative_error)},
      {"weighted_error", or_null(report.weighted_error())}};
}

Json sizes_to_json(const std::vector<std::pair<std::string, std::uint64_t>>& sizes) {
  Json json = Json::object();
  for (const auto& [type, bytes] : sizes) {
    json[type] = bytes;
  }
  return json;
}

Json to_json(const Report& report) {
  Json json = {{"report_schema", 1},
               {"name", report.name},
               {"program", report.program},
               {"architecture", report.architecture},
               {"summary", summary_to_json(report)},
               {"bytes_by_type",
                {{"before", sizes_to_json(report.before_by_type)},
                 {"after", sizes_to_json(report.after_by_type)}}}};
  json["tensors"] = Json::array();
  for (const TensorReport& tensor : report.tensors) {
    json["tensors"].push_back(tensor_to_json(tensor));
  }
  json["groups"] = Json::array();
  for (const GroupReport& group : report.groups) {
    json["groups"].push_back(group_to_json(group));
  }
  json["scale_histogram"] = {{"bin_width", kScaleBinWidth},
                             {"first", -kScaleBinWidth * kScaleBins / 2},
                             {"counts", report.scale_histogram}};
  json["codes"] = Json::object();
  for (const auto& [scheme, counts] : report.codes) {
    json["codes"][scheme] = histogram_to_json(counts);
  }
  json["no_codes"] = report.no_codes;
  json["outliers"] = Json::array();
  for (const OutlierReport& outlier : report.outliers) {
    json["outliers"].push_back(
        {{"input", outlier.input},
         {"measure", outlier.measure},
         {"channels", outlier.channels},
         {"largest_channel", outlier.largest_channel},
         {"largest_to_median",
          std::isfinite(outlier.largest_to_median) ? Json(outlier.largest_to_median)
                                                   : Json(nullptr)}});
  }
  json["kept"] = Json::array();
  for (const KeptReport& kept : report.kept) {
    json["kept"].push_back(
        {{"why", kept.why}, {"size_bytes", kept.size_bytes}, {"names", kept.names}});
  }
  json["run"] = report.run_json.empty() ? Json(nullptr) : Json::parse(report.run_json);
  json["target"] = Json::parse(report.target_json);
  json["recipe"] = Json::parse(report.recipe_json);
  json["inputs"] = report.inputs;
  json["files"] = Json::array();
  for (const FileReport& file : report.files) {
    json["files"].push_back(
        {{"name", file.name}, {"size_bytes", file.size_bytes}, {"xxh128", file.xxh128}});
  }
  return json;
}

// JSON inside a script element: a name must not end it.
std::string for_script(const Json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', true)) {
    text += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return text;
}

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return escaped;
}

}  // namespace

std::string report_to_json(const Report& report) {
  return to_json(report).dump(1) + "\n";
}

std::string print_page(const Report& report, const std::optional<Report>& other) {
  Json data = Json::array({to_json(report)});
  if (other) {
    data.push_back(to_json(*other));
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main id=\"report\"></main>\n"
      "<noscript>This report is drawn by a script within it; quantmill report OUT prints it as "
      "text.</noscript>\n"
      "<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{}</script>\n"
      "</body>\n</html>\n",
      escape_html(other ? report.name + " and " + other->name : report.name),
      page_style(),
      for_script(data),
      page_script());
}

}  // namespace quantmill
