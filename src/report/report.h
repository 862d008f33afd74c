#pragma once

// What an output checkpoint of a job is like, read from its files: manifest, scales, run record and
// codes. One structure, printed as text, JSON or a page (report_print.h, page.h).

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/code_counts.h"

namespace quantmill {

// A quantized tensor.
struct TensorReport {
  std::string name;
  std::optional<std::uint64_t> layer;  // the first number in its name
  std::string kind;                    // "down_proj", "experts.down_proj"
  std::string scheme;
  std::vector<std::uint64_t> shape;                 // empty for a slice of a tensor
  double relative_error = 0;                        // ||quantized - folded|| / ||folded||
  std::optional<double> activation_weighted_error;  // TensorError's
  std::optional<CodeCounts> codes;

  // In dB; nothing if the error is 0.
  [[nodiscard]] std::optional<double> signal_to_noise() const;
};

struct GroupReport {
  std::string name;
  std::optional<std::uint64_t> layer;
  std::string kind;
  std::size_t channels = 0;
  std::optional<double> alpha;  // nothing if it was not searched or chosen block by block
  std::optional<double> beta;
  std::string not_scaled;                // why s is 1, or ""
  std::optional<std::uint64_t> tokens;   // that its statistics were recorded on
  std::optional<double> weighted_error;  // activation-weighted, in ratio to that without scaling
  double s_min = 1;
  double s_low = 1;  // a twentieth is below
  double s_median = 1;
  double s_high = 1;  // a twentieth is above
  double s_max = 1;
};

// Of log2 s of all channels that are scaled: bins of a quarter from -4 to 4, the outermost for
// what is beyond.
inline constexpr int kScaleBins = 32;
inline constexpr double kScaleBinWidth = 0.25;

// An input with channels that stand out.
struct OutlierReport {
  std::string input;
  std::string measure;  // "mean |x|", "rms x"
  std::size_t channels = 0;
  std::size_t largest_channel = 0;
  double largest_to_median = 0;  // infinite where more than half are 0
};

struct KeptReport {
  std::string why;
  std::uint64_t size_bytes = 0;
  std::vector<std::string> names;
};

struct FileReport {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::string xxh128;
};

struct Report {
  std::string name;  // of the folder
  std::string program;
  std::string architecture;
  std::string recipe_json;
  std::string target_json;  // target_to_json of the job, or "null"
  std::string run_json;     // quantmill_run.json, or empty
  std::map<std::string, std::string> inputs;
  std::vector<FileReport> files;
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;
  std::uint64_t parameters = 0;  // 0: the manifest is of an older program
  std::uint64_t quantized_parameters = 0;
  std::vector<std::pair<std::string, std::uint64_t>> before_by_type;  // largest first
  std::vector<std::pair<std::string, std::uint64_t>> after_by_type;
  std::vector<TensorReport> tensors;
  std::vector<GroupReport> groups;
  std::vector<std::uint64_t> scale_histogram;  // kScaleBins, or empty
  std::map<std::string, CodeCounts> codes;     // by scheme
  std::string no_codes;                        // why there are none, or ""
  std::vector<OutlierReport> outliers;         // the most first
  std::vector<KeptReport> kept;                // the most bytes first

  // Output bits of all files' tensors for each parameter; nothing where it is not known.
  [[nodiscard]] std::optional<double> bits_per_weight() const;
  // Of the searched groups together, in ratio to no scaling.
  [[nodiscard]] std::optional<double> weighted_error() const;
  [[nodiscard]] std::optional<double> median_error() const;
  // Indices into tensors, largest error first.
  [[nodiscard]] std::vector<std::size_t> worst_first() const;

  double weighted_chosen = 0;  // sums of the groups' errors
  double weighted_unscaled = 0;
};

struct ReportOptions {
  bool codes = true;                                // read all codes and scales
  std::optional<std::filesystem::path> statistics;  // for outliers
  int num_threads = 1;
};

// kInput if the folder is no output of quantmill, or its files do not belong together. kIo.
Report make_report(const std::filesystem::path& folder, const ReportOptions& options);

}  // namespace quantmill
