#include "jobs/stats.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/reader.h"
#include "plan/architecture.h"
#include "plan/imatrix_statistics.h"
#include "stats/gram.h"
#include "stats/imatrix.h"
#include "stats/import.h"
#include "stats/merge.h"
#include "stats/store.h"

namespace quantmill {

namespace {

using Json = nlohmann::ordered_json;

struct StatsOptions {
  std::string prefix;
  std::string model;  // whose weights an imatrix is about
  std::vector<std::string> inputs;
  std::string output;
  std::string architecture;
  bool as_json = false;
};

// Before any work, so that nothing is computed in vain.
void refuse_existing(const std::string& output) {
  std::error_code error;
  if (std::filesystem::exists(output, error)) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} exists and is not overwritten; remove it or give another -o", output));
  }
}

void report_written(const Statistics& statistics, const std::string& output) {
  std::cout << fmt::format("{}: {} inputs\n", output, statistics.size());
}

constexpr std::size_t kNamesShown = 8;

void report_names(std::string_view what, const std::vector<std::string>& names) {
  if (!names.empty()) {
    std::cout << fmt::format(
        "{} {}: {}{}\n",
        names.size(),
        what,
        fmt::join(std::span(names).first(std::min(names.size(), kNamesShown)), ", "),
        names.size() > kNamesShown ? " …" : "");
  }
}

int import_imatrix(const StatsOptions& options) {
  if (options.model.empty()) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format(
            "{} is one file, so an imatrix of llama.cpp, which names weights in its own way; "
            "say with --model MODEL_DIR whose they are (only headers are read there)",
            options.prefix));
  }
  const Imatrix imatrix = read_imatrix(options.prefix);
  const Checkpoint checkpoint = Checkpoint::open(options.model);
  const std::string config = checkpoint.config_text();
  const ResolvedArchitecture architecture = resolve_architecture(
      choose_architecture(options.architecture, config), config, checkpoint, true);
  const ImatrixStatistics found = imatrix_statistics(architecture, imatrix);
  write_statistics(options.output, found.statistics);
  report_names("weights of the imatrix are not used", found.unused);
  report_names("inputs are not in it", found.missing);
  report_names("inputs took the sums of something alike", found.alike);
  report_written(found.statistics, options.output);
  return 0;
}

int run_import(const StatsOptions& options) {
  refuse_existing(options.output);
  std::error_code error;
  if (std::filesystem::is_regular_file(options.prefix, error)) {
    return import_imatrix(options);
  }
  const PartitionOf partition_of = options.architecture.empty()
                                       ? builtin_partition_rule()
                                       : partition_rule(load_architecture(options.architecture));
  const Statistics merged = import_tensor_parallel(options.prefix, partition_of);
  write_statistics(options.output, merged);
  report_written(merged, options.output);
  return 0;
}

int run_merge(const StatsOptions& options) {
  refuse_existing(options.output);
  RunMerger merger;
  std::deque<GramFile> files;
  std::map<std::string, std::vector<GramPart>> grams;  // by input
  for (const std::string& input : options.inputs) {
    Statistics run = read_statistics(input);
    files.emplace_back(input);
    for (const auto& [name, recorded] : run) {
      if (recorded.gram_tokens > 0) {
        grams[name].push_back({&files.back(), recorded.gram_tokens});
      }
    }
    merger.add(std::move(run));
  }
  const Statistics merged = merger.finish();
  // Asked for where every run that has the input has its matrix.
  write_statistics(options.output, merged, [&](const std::string& name) {
    return merge_grams(grams.at(name), name, merged.at(name).absmean.size());
  });
  report_written(merged, options.output);
  return 0;
}

// What `show` tells of one input.
struct Summary {
  std::size_t channels = 0;
  double mean = 0;                // of mean |x| over channels
  std::optional<double> maximum;  // of max |x|, where recorded
  // The largest channel's mean |x| over the median channel's: how uneven they are. Nothing if that
  // median is 0.
  std::optional<double> outlier_ratio;
};

Summary summarize(const InputStatistics& input) {
  Summary summary;
  summary.channels = input.absmean.size();
  std::vector<double> sorted = input.absmean;
  std::sort(sorted.begin(), sorted.end());
  for (const double value : sorted) {
    summary.mean += value / static_cast<double>(sorted.size());
  }
  if (!input.absmax.empty()) {
    summary.maximum = *std::max_element(input.absmax.begin(), input.absmax.end());
  }
  const double median = sorted[sorted.size() / 2];
  if (median > 0) {
    summary.outlier_ratio = sorted.back() / median;
  }
  return summary;
}

// "replicated", or "row 128+128", or "row 8 x 64" for equal parts.
std::string partition_text(const InputStatistics& input) {
  if (input.partition == Partition::kReplicated) {
    return "replicated";
  }
  const std::vector<std::uint64_t>& parts = input.part_channels;
  const bool equal = std::all_of(
      parts.begin(), parts.end(), [&](std::uint64_t part) { return part == parts.front(); });
  return equal ? fmt::format("row {} x {}", parts.size(), parts.front())
               : fmt::format("row {}", fmt::join(parts, "+"));
}

std::string number_text(const std::optional<double>& value) {
  return value ? fmt::format("{:.4g}", *value) : "-";
}

std::string print_table(const Statistics& statistics) {
  std::size_t name_width = 5;
  std::size_t partition_width = 9;
  for (const auto& [name, input] : statistics) {
    name_width = std::max(name_width, name.size());
    partition_width = std::max(partition_width, partition_text(input).size());
  }
  const auto line = [&](const std::string& name,
                        const std::string& channels,
                        const std::string& tokens,
                        const std::string& partition,
                        const std::string& mean,
                        const std::string& maximum,
                        const std::string& ratio) {
    return fmt::format("{:<{}}  {:>8}  {:>12}  {:<{}}  {:>10}  {:>10}  {:>10}\n",
                       name,
                       name_width,
                       channels,
                       tokens,
                       partition,
                       partition_width,
                       mean,
                       maximum,
                       ratio);
  };
  std::string text =
      line("input", "channels", "tokens", "partition", "mean |x|", "max |x|", "outliers");
  for (const auto& [name, input] : statistics) {
    const Summary summary = summarize(input);
    text += line(name,
                 fmt::format("{}", summary.channels),
                 input.has_count ? fmt::format("{}", input.count) : "-",
                 partition_text(input),
                 number_text(summary.mean),
                 number_text(summary.maximum),
                 number_text(summary.outlier_ratio));
  }
  text += fmt::format(
      "\n{} inputs. outliers: the largest channel's mean |x| over the median channel's.\n",
      statistics.size());
  return text;
}

Json optional_number(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string print_json(const Statistics& statistics) {
  Json inputs = Json::array();
  for (const auto& [name, input] : statistics) {
    const Summary summary = summarize(input);
    const bool is_row = input.partition == Partition::kRow;
    inputs.push_back({{"name", name},
                      {"channels", summary.channels},
                      {"tokens", input.has_count ? Json(input.count) : Json(nullptr)},
                      {"partition", is_row ? "row" : "replicated"},
                      {"part_channels", input.part_channels},
                      {"mean", summary.mean},
                      {"max", optional_number(summary.maximum)},
                      {"outlier_ratio", optional_number(summary.outlier_ratio)},
                      {"has_sqmean", !input.sqmean.empty()},
                      {"gram_tokens", input.gram_tokens},
                      {"source", input.source}});
  }
  // Names come from files and need not be UTF-8.
  return Json{{"inputs", inputs}}.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int run_show(const StatsOptions& options) {
  const Statistics statistics = read_statistics(options.inputs.front());
  std::cout << (options.as_json ? print_json(statistics) : print_table(statistics));
  return 0;
}

void add_import(CLI::App& stats,
                const std::shared_ptr<StatsOptions>& options,
                std::function<int()>& action) {
  CLI::App* command =
      stats.add_subcommand("import",
                           "Read PREFIX.tp0.pt, PREFIX.tp1.pt ... as tensor-parallel ranks wrote "
                           "them with torch.save (nothing in them is executed) and put them "
                           "together, or an imatrix of llama.cpp, and write one HDF5 file");
  command
      ->add_option("PREFIX",
                   options->prefix,
                   "part of the files' names before .tp0.pt; or an imatrix, GGUF or .dat")
      ->required();
  command->add_option(
      "--model",
      options->model,
      "folder of the checkpoint that an imatrix was recorded of; only headers are read");
  command->add_option("-o,--output", options->output, "HDF5 file to write; must not exist")
      ->required();
  command->add_option(
      "--arch",
      options->architecture,
      "architecture that says which inputs are split over ranks: a built-in name or a JSON file "
      "(default: all built-in ones; of an imatrix: what --model's config.json calls for)");
  command->callback([options, &action] { action = [options] { return run_import(*options); }; });
}

void add_merge(CLI::App& stats,
               const std::shared_ptr<StatsOptions>& options,
               std::function<int()>& action) {
  CLI::App* command = stats.add_subcommand("merge",
                                           "Put several runs of one model together: means are "
                                           "weighted by tokens, maxima are the largest");
  command->add_option("FILE", options->inputs, "HDF5 files of statistics")->required();
  command->add_option("-o,--output", options->output, "HDF5 file to write; must not exist")
      ->required();
  command->callback([options, &action] { action = [options] { return run_merge(*options); }; });
}

void add_show(CLI::App& stats,
              const std::shared_ptr<StatsOptions>& options,
              std::function<int()>& action) {
  CLI::App* command = stats.add_subcommand(
      "show", "List the inputs of a statistics file: channels, tokens, mean and max |x|, outliers");
  command->add_option("FILE", options->inputs, "HDF5 file of statistics")->required()->expected(1);
  command->add_flag("--json", options->as_json, "print JSON");
  command->callback([options, &action] { action = [options] { return run_show(*options); }; });
}

}  // namespace

void add_stats_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* stats = app.add_subcommand(
      "stats", "Import, merge or show activation statistics (one process; no mpirun is needed)");
  stats->require_subcommand(1);
  const auto options = std::make_shared<StatsOptions>();
  add_import(*stats, options, action);
  add_merge(*stats, options, action);
  add_show(*stats, options, action);
}

}  // namespace quantmill
