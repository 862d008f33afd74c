#include "jobs/diff.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/parallel.h"
#include "checkpoint/reader.h"
#include "jobs/command_io.h"
#include "jobs/tensor_values.h"

namespace quantmill {
namespace {

constexpr std::size_t kMostShown = 40;
constexpr int kDifferent = 1;  // the exit status, as of diff(1)

struct DiffOptions {
  std::string a;
  std::string b;
  bool as_json = false;
  bool all = false;
  int num_threads = 2;
};

// Of two tensors of the same name.
struct TensorDifference {
  const TensorValues* a = nullptr;
  const TensorValues* b = nullptr;
  std::uint64_t num_elements = 0;
  std::uint64_t num_different = 0;
  double largest = 0;   // |a - b|; infinite where one is finite and the other is not
  double relative = 0;  // ||a - b|| / ||a||

  [[nodiscard]] bool same_shape() const { return a->shape == b->shape; }

  [[nodiscard]] bool differs() const { return !same_shape() || num_different > 0; }
};

struct Comparison {
  std::vector<std::string> only_a;
  std::vector<std::string> only_b;
  std::vector<TensorDifference> common;  // those that differ most first
};

void compare_values(const Checkpoint& a, const Checkpoint& b, TensorDifference& difference) {
  ValueReader reader_a(a, *difference.a);
  ValueReader reader_b(b, *difference.b);
  double squared_error = 0;
  double squared_norm = 0;
  for_each_piece(reader_a,
                 *difference.a,
                 {0, difference.a->rows},
                 [&](std::uint64_t first, std::span<const double> of_a) {
                   const std::span<const double> of_b =
                       reader_b.read({first, first + of_a.size() / difference.a->cols});
                   for (std::size_t i = 0; i < of_a.size(); ++i) {
                     squared_norm += std::isfinite(of_a[i]) ? of_a[i] * of_a[i] : 0;
                     if (of_a[i] == of_b[i] || (std::isnan(of_a[i]) && std::isnan(of_b[i]))) {
                       continue;
                     }
                     ++difference.num_different;
                     const double error = std::fabs(of_a[i] - of_b[i]);
                     difference.largest = std::isfinite(error)
                                              ? std::max(difference.largest, error)
                                              : std::numeric_limits<double>::infinity();
                     squared_error += error * error;
                   }
                   difference.num_elements += of_a.size();
                 });
  difference.relative = difference.num_different == 0 ? 0
                        : std::isfinite(squared_error) && squared_norm > 0
                            ? std::sqrt(squared_error / squared_norm)
                            : std::numeric_limits<double>::infinity();
}

Comparison compare(const Checkpoint& a,
                   const std::vector<TensorValues>& tensors_a,
                   const Checkpoint& b,
                   const std::vector<TensorValues>& tensors_b,
                   int num_threads) {
  Comparison comparison;
  std::map<std::string, const TensorValues*> in_b;
  for (const TensorValues& tensor : tensors_b) {
    in_b[tensor.name] = &tensor;
  }
  for (const TensorValues& tensor : tensors_a) {
    const auto found = in_b.find(tensor.name);
    if (found == in_b.end()) {
      comparison.only_a.push_back(tensor.name);
      continue;
    }
    TensorDifference difference;
    difference.a = &tensor;
    difference.b = found->second;
    comparison.common.push_back(difference);
    in_b.erase(found);
  }
  for (const auto& [name, tensor] : in_b) {
    comparison.only_b.push_back(name);
  }
  run_indexed(num_threads, comparison.common.size(), [&](std::size_t index, int) {
    if (comparison.common[index].same_shape()) {
      compare_values(a, b, comparison.common[index]);
    }
  });
  std::ranges::stable_sort(comparison.common, [](const auto& one, const auto& other) {
    return std::pair(!one.same_shape(), one.relative) >
           std::pair(!other.same_shape(), other.relative);
  });
  return comparison;
}

nlohmann::ordered_json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

std::string print_json(const Comparison& comparison) {
  auto tensors = nlohmann::ordered_json::array();
  for (const TensorDifference& tensor : comparison.common) {
    tensors.push_back({{"name", tensor.a->name},
                       {"a", {{"format", format_name(*tensor.a)}, {"shape", tensor.a->shape}}},
                       {"b", {{"format", format_name(*tensor.b)}, {"shape", tensor.b->shape}}},
                       {"differs", tensor.differs()},
                       {"num_different", tensor.num_different},
                       {"largest", finite_or_null(tensor.largest)},
                       {"relative", finite_or_null(tensor.relative)}});
  }
  return nlohmann::ordered_json{
             {"only_a", comparison.only_a}, {"only_b", comparison.only_b}, {"tensors", tensors}}
             .dump(1) +
         "\n";
}

std::string describe_tensor(const TensorDifference& tensor) {
  const std::string formats =
      format_name(*tensor.a) == format_name(*tensor.b)
          ? format_name(*tensor.a)
          : fmt::format("{} | {}", format_name(*tensor.a), format_name(*tensor.b));
  if (!tensor.same_shape()) {
    return fmt::format("  {:<56} shape [{}] | [{}]  {}\n",
                       tensor.a->name,
                       fmt::join(tensor.a->shape, ", "),
                       fmt::join(tensor.b->shape, ", "),
                       formats);
  }
  return fmt::format("  {:<56} {:>10.4g} {:>12.4g} {:>7.2f} %  {}\n",
                     tensor.a->name,
                     tensor.relative,
                     tensor.largest,
                     100 * static_cast<double>(tensor.num_different) /
                         static_cast<double>(std::max<std::uint64_t>(1, tensor.num_elements)),
                     formats);
}

std::string list_names(const std::string& what, const std::vector<std::string>& names, bool all) {
  std::string text = names.empty() ? "" : fmt::format("{}: {}\n", what, names.size());
  for (std::size_t i = 0; i < names.size() && (all || i < kMostShown); ++i) {
    text += fmt::format("  {}\n", names[i]);
  }
  return text;
}

std::string print_text(const Comparison& comparison, const DiffOptions& options) {
  std::string text = list_names("only in " + options.a, comparison.only_a, options.all) +
                     list_names("only in " + options.b, comparison.only_b, options.all);
  std::size_t shown = 0;
  std::size_t different = 0;
  std::string lines;
  for (const TensorDifference& tensor : comparison.common) {
    different += tensor.differs() ? 1U : 0U;
    if (tensor.differs() && (options.all || shown++ < kMostShown)) {
      lines += describe_tensor(tensor);
    }
  }
  if (different > 0) {
    text +=
        fmt::format(
            "  {:<56} {:>10} {:>12} {:>9}  format\n", "tensor", "relative", "largest", "elements") +
        lines;
  }
  if (!options.all && different > kMostShown) {
    text += fmt::format("  … {} more; --all lists them\n", different - kMostShown);
  }
  return text +
         fmt::format("{} of {} common tensors differ\n", different, comparison.common.size());
}

int run_diff(const DiffOptions& options) {
  const Checkpoint a = open_checkpoint(options.a);
  const Checkpoint b = open_checkpoint(options.b);
  const std::vector<TensorValues> tensors_a = all_values(a);
  const std::vector<TensorValues> tensors_b = all_values(b);
  const Comparison comparison = compare(a, tensors_a, b, tensors_b, options.num_threads);
  std::cout << (options.as_json ? print_json(comparison) : print_text(comparison, options));
  const bool differ = !comparison.only_a.empty() || !comparison.only_b.empty() ||
                      std::ranges::any_of(comparison.common, &TensorDifference::differs);
  return differ ? kDifferent : 0;
}

}  // namespace

void add_diff_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand(
      "diff",
      "Say which weights of two checkpoints differ, and by how much; quantized ones are decoded");
  auto options = std::make_shared<DiffOptions>();
  command->add_option("A", options->a, "folder of a checkpoint, or one .safetensors file")
      ->required();
  command->add_option("B", options->b, "another")->required();
  command->add_flag("--json", options->as_json, "print JSON, every common tensor");
  command->add_flag("--all", options->all, "list all that differ, not only the first 40");
  command->add_option("--threads", options->num_threads, "threads (default 2)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command->footer(
      "Relative: ||A - B|| / ||A||. Largest: of |A - B|. Elements: the share that differs.\n"
      "Exit status: 0 if all values are equal, 1 if any differ or a tensor is in one only.");
  command->callback([options, &action] { action = [options] { return run_diff(*options); }; });
}

}  // namespace quantmill
