#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "report/print.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kNamed = 10;
constexpr std::size_t kBarWidth = 40;

std::string bar(double share) {
  const auto width = static_cast<std::size_t>(
      std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(kBarWidth)));
  std::string text;
  for (std::size_t i = 0; i < width; ++i) {
    text += "█";
  }
  return text.empty() && share > 0 ? "▏" : text;
}

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string describe_sizes(const Report& report) {
  std::string text = "size by type\n";
  const std::uint64_t most = std::max(report.bytes_before, report.bytes_after);
  for (const auto& [type, bytes] : report.before_by_type) {
    text += fmt::format(
        "  before  {:<14} {:>12}  {}\n", type, format_size(bytes), bar(ratio(bytes, most)));
  }
  for (const auto& [type, bytes] : report.after_by_type) {
    text += fmt::format(
        "  after   {:<14} {:>12}  {}\n", type, format_size(bytes), bar(ratio(bytes, most)));
  }
  return report.after_by_type.empty() ? "" : text;
}

std::string describe_scales(const Report& report) {
  std::uint64_t most = 0;
  std::size_t first = report.scale_histogram.size();
  std::size_t last = 0;
  for (std::size_t bin = 0; bin < report.scale_histogram.size(); ++bin) {
    most = std::max(most, report.scale_histogram[bin]);
    if (report.scale_histogram[bin] > 0) {
      first = std::min(first, bin);
      last = bin;
    }
  }
  if (most == 0) {
    return "";
  }
  std::string text = "scales of input channels (s, all scaled fold groups)\n";
  for (std::size_t bin = first; bin <= last; ++bin) {
    const double from = std::exp2(kScaleBinWidth * (static_cast<double>(bin) - kScaleBins / 2.0));
    text += fmt::format("  {:>6.3g} …  {:>10}  {}\n",
                        from,
                        report.scale_histogram[bin],
                        bar(ratio(report.scale_histogram[bin], most)));
  }
  return text;
}

std::string describe_tensors(const Report& report) {
  if (report.tensors.empty()) {
    return "";
  }
  std::string text =
      "largest relative weight error                                 error   SNR dB  weighted by "
      "inputs\n";
  const std::vector<std::size_t> order = report.worst_first();
  for (std::size_t i = 0; i < std::min(kNamed, order.size()); ++i) {
    const TensorReport& tensor = report.tensors[order[i]];
    text += fmt::format("  {:<56} {:>8.4f} {:>8.2f} {:>9}\n",
                        tensor.name,
                        tensor.relative_error,
                        tensor.signal_to_noise().value_or(INFINITY),
                        tensor.activation_weighted_error
                            ? fmt::format("{:.4f}", *tensor.activation_weighted_error)
                            : "-");
  }
  return text;
}

std::string describe_groups(const Report& report) {
  std::vector<const GroupReport*> searched;
  std::map<std::string, std::size_t> reasons;
  for (const GroupReport& group : report.groups) {
    if (group.weighted_error) {
      searched.push_back(&group);
    } else if (!group.not_scaled.empty()) {
      ++reasons[group.not_scaled];
    }
  }
  std::ranges::stable_sort(searched, std::ranges::greater(), &GroupReport::weighted_error);
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, searched.size()); ++i) {
    text += fmt::format(
        "  {:<56} {:>7.1f} %\n", searched[i]->name, 100 * searched[i]->weighted_error.value_or(1));
  }
  if (!text.empty()) {
    text =
        "fold groups that gained least: activation-weighted error, of what it is unscaled\n" + text;
  }
  for (const auto& [reason, count] : reasons) {
    text += fmt::format("  {} not scaled: {}\n", count, reason);
  }
  return text;
}

std::string describe_codes(const Report& report) {
  std::string text;
  for (const auto& [scheme, counts] : report.codes) {
    text += fmt::format(
        "codes of {}: {} tensors, {:.2f} % at the largest magnitude (clipped or "
        "just reached), {:.2f} % zero\n",
        scheme,
        counts.tensors,
        100 * ratio(counts.largest, counts.elements),
        100 * ratio(counts.zeros, counts.elements));
    std::uint64_t scales = 0;
    for (const auto& [exponent, count] : counts.scale_exponents) {
      scales += count;
    }
    for (const auto& [exponent, count] : counts.scale_exponents) {
      text += fmt::format("  scale 2^{:<4} {:>6.2f} %  {}\n",
                          exponent,
                          100 * ratio(count, scales),
                          bar(ratio(count, scales)));
    }
  }
  return report.no_codes.empty() ? text : fmt::format("{}\n", report.no_codes);
}

std::string describe_rest(const Report& report) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, report.outliers.size()); ++i) {
    const OutlierReport& outlier = report.outliers[i];
    text += fmt::format("{}  {:<48} {:>9.1f} x the median, channel {} ({})\n",
                        i == 0 ? "inputs with channels that stand out\n" : "",
                        outlier.input,
                        outlier.largest_to_median,
                        outlier.largest_channel,
                        outlier.measure);
  }
  for (const KeptReport& kept : report.kept) {
    text += fmt::format("{}  {:>12}  {:>5} tensors  {}\n",
                        &kept == &report.kept.front() ? "kept unquantized, and why\n" : "",
                        format_size(kept.size_bytes),
                        kept.names.size(),
                        kept.why);
  }
  return text;
}

std::string describe_time(const Report& report) {
  if (report.run_json.empty()) {
    return "no quantmill_run.json: how long it took is not known\n";
  }
  const Json run = Json::parse(report.run_json);
  std::string text = fmt::format("{:.1f} s on {} ranks, {} nodes, started {}{}; limited by {}\n",
                                 run.value("seconds", 0.0),
                                 run.value("ranks", 1),
                                 run.value("nodes", 1),
                                 run.value("started", "?"),
                                 run.value("resumed", false) ? ", resumed" : "",
                                 run.value("limited_by", "?"));
  for (const Json& phase : run.value("phases", Json::array())) {
    const double seconds = phase.value("seconds", 0.0);
    text += fmt::format("  {:<8} {:>9.1f} s  {}\n",
                        phase.value("name", ""),
                        seconds,
                        bar(seconds / std::max(run.value("seconds", 0.0), 1e-9)));
  }
  return text;
}

std::string optional_number(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "?";
}

// One line of a comparison.
std::string compare_line(const std::string& what, const std::string& a, const std::string& b) {
  return fmt::format("  {:<34} {:>20} {:>20}\n", what, a, b);
}

double seconds_of(const Report& report) {
  return report.run_json.empty() ? NAN : Json::parse(report.run_json).value("seconds", NAN);
}

}  // namespace

namespace {

std::string describe_target_of(const Report& report) {
  const Json target = Json::parse(report.target_json);
  if (!target.is_object()) {
    return "";
  }
  const Json bits = target.value("bits", Json(nullptr));
  std::string text = fmt::format(
      "target: {}, {:.4f} bits per weight of linears reached\n",
      bits.is_number() ? fmt::format("{} bits per weight of linears", bits.get<double>())
                       : format_size(target.value("bytes", std::uint64_t{0})) + " of output",
      target.value("bits_reached", 0.0));
  const Json schemes = target.value("schemes", Json::object());
  for (const auto& [scheme, count] : schemes.items()) {
    text += fmt::format("  {:<14} {:>6} tensors, {:>15} weights\n",
                        scheme,
                        count.value("tensors", std::uint64_t{0}),
                        count.value("weights", std::uint64_t{0}));
  }
  return text;
}

// What differs between two values of a recipe's key; of tensors' schemes how many do.
std::string describe_change(const std::string& key, const Json& value, const Json& other) {
  if (key != "chosen") {
    return fmt::format("{} | {}", value.dump(), other.dump());
  }
  const Json empty = Json::object();
  const Json& a = value.is_object() ? value : empty;
  const Json& b = other.is_object() ? other : empty;
  std::size_t differ = 0;
  for (const auto& [name, scheme] : a.items()) {
    differ += b.value(name, Json(nullptr)) != scheme ? 1U : 0U;
  }
  return fmt::format("{} | {} tensors, {} of them otherwise", a.size(), b.size(), differ);
}

}  // namespace

std::string describe_report(const Report& report) {
  std::string text = fmt::format(
      "{}: {}, {}\n{} -> {} ({:.1f} %), {} bits per weight, {:.1f} % of the weights "
      "quantized\n",
      report.name,
      report.architecture,
      report.program,
      format_size(report.bytes_before),
      format_size(report.bytes_after),
      100 * ratio(report.bytes_after, report.bytes_before),
      optional_number(report.bits_per_weight(), 2),
      100 * ratio(report.quantized_parameters, report.parameters));
  text += describe_target_of(report);
  if (const std::optional<double> gain = report.weighted_error()) {
    text +=
        fmt::format("activation-weighted error: {:.1f} % of what it is unscaled\n", 100 * *gain);
  }
  text += describe_sizes(report) + describe_tensors(report) + describe_groups(report) +
          describe_scales(report) + describe_codes(report) + describe_rest(report);
  return text + describe_time(report);
}

std::string describe_comparison(const Report& a, const Report& b) {
  std::string text = compare_line("", a.name, b.name);
  text += compare_line("size", format_size(a.bytes_after), format_size(b.bytes_after));
  text += compare_line("bits per weight",
                       optional_number(a.bits_per_weight(), 3),
                       optional_number(b.bits_per_weight(), 3));
  text += compare_line("median relative weight error",
                       optional_number(a.median_error(), 5),
                       optional_number(b.median_error(), 5));
  text += compare_line("activation-weighted, of unscaled",
                       optional_number(a.weighted_error(), 4),
                       optional_number(b.weighted_error(), 4));
  text += compare_line(
      "seconds", fmt::format("{:.1f}", seconds_of(a)), fmt::format("{:.1f}", seconds_of(b)));
  const Json recipe_a = Json::parse(a.recipe_json);
  const Json recipe_b = Json::parse(b.recipe_json);
  for (const auto& [key, value] : recipe_a.items()) {
    const Json other = recipe_b.value(key, Json(nullptr));
    if (value != other) {
      text += fmt::format("  {}: {}\n", key, describe_change(key, value, other));
    }
  }
  std::map<std::string, double> errors;
  for (const TensorReport& tensor : a.tensors) {
    errors[tensor.name] = tensor.relative_error;
  }
  std::vector<std::pair<double, const TensorReport*>> changes;
  for (const TensorReport& tensor : b.tensors) {
    const auto found = errors.find(tensor.name);
    if (found != errors.end() && found->second != tensor.relative_error) {
      changes.emplace_back(std::fabs(std::log(tensor.relative_error / found->second)), &tensor);
    }
  }
  std::ranges::stable_sort(changes, std::ranges::greater(), [](const auto& c) { return c.first; });
  text += fmt::format("{} of {} tensors differ in their error\n", changes.size(), b.tensors.size());
  for (std::size_t i = 0; i < std::min(kNamed, changes.size()); ++i) {
    const TensorReport& tensor = *changes[i].second;
    text += fmt::format(
        "  {:<56} {:.4f} -> {:.4f}\n", tensor.name, errors[tensor.name], tensor.relative_error);
  }
  return text;
}

}  // namespace quantmill
