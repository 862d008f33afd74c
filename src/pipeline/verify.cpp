#include "pipeline/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "base/error.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "checkpoint/reader.h"
#include "kernels/convert.h"
#include "pipeline/carried_scales.h"
#include "pipeline/fold_table.h"
#include "pipeline/function_proof.h"
#include "pipeline/input_ranges.h"
#include "pipeline/manifest.h"
#include "pipeline/measure.h"
#include "pipeline/produce.h"
#include "pipeline/verify_qwix.h"
#include "plan/plan.h"
#include "plan/recipe_json.h"
#include "stats/store.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kBufferBytes = std::uint64_t{4} << 20;
constexpr std::size_t kMostFindings = 20;  // of one kind; the rest is counted

// Collects findings from several threads; long lists are cut.
class Findings {
 public:
  void add(std::string text) {
    const std::lock_guard lock(mutex_);
    if (texts_.size() < kMostFindings) {
      texts_.push_back(std::move(text));
    } else {
      ++more_;
    }
  }

  // Moves what was found to the report, or the line that says what passed.
  void finish(const std::string& passed, VerifyReport& report) {
    if (texts_.empty()) {
      report.passed.push_back(passed);
    }
    report.findings.insert(report.findings.end(), texts_.begin(), texts_.end());
    if (more_ > 0) {
      report.findings.push_back(fmt::format("… and {} more of this kind", more_));
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
  std::size_t more_ = 0;
};

void verify_files(const VerifyOptions& options, const Manifest& manifest, VerifyReport& report) {
  Findings findings;
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) {
    bytes += file.size_bytes;
  }
  run_indexed(options.num_threads, manifest.files.size(), [&](std::size_t index, int) {
    const ManifestFile& file = manifest.files[index];
    const std::filesystem::path path = options.out / file.name;
    if (!std::filesystem::is_regular_file(path)) {
      findings.add(fmt::format("{}: the file is missing", file.name));
    } else if (const std::uint64_t size = std::filesystem::file_size(path);
               size != file.size_bytes) {
      findings.add(
          fmt::format("{}: {} bytes, the manifest says {}", file.name, size, file.size_bytes));
    } else if (const std::string hash = hash_file(path); hash != file.xxh128) {
      findings.add(fmt::format(
          "{}: hash {}, the manifest says {}; the file was changed", file.name, hash, file.xxh128));
    }
  });
  findings.finish(fmt::format("files: {} files, {} bytes, sizes and hashes as in the manifest",
                              manifest.files.size(),
                              bytes),
                  report);
}

// Scales must be numbers above 0.
void verify_scales(const Checkpoint& out, const SourceWeight& weight, Findings& findings) {
  const SourceTensor& scales = out.tensors()[*weight.scales];
  std::vector<std::byte> bytes(scales.entry.size_bytes());
  out.read(scales, 0, bytes);
  if (!is_convertible(scales.entry.dtype)) {
    if (std::ranges::count(bytes, std::byte{255}) > 0) {
      findings.add(fmt::format("tensor {}: a scale byte is 255, which is NaN", scales.entry.name));
    }
    return;
  }
  std::vector<float> values(scales.entry.num_elements());
  (void)decode_to_float({Backend::kReference, Isa::kPlain},
                        scales.entry.dtype,
                        bytes,
                        FloatMatrix{values.data(), 1, values.size()});
  for (const float value : values) {
    if (!(std::isfinite(value) && value > 0)) {
      findings.add(fmt::format("tensor {}: a scale is {}", scales.entry.name, value));
      return;
    }
  }
}

// Reads the checkpoint as any other source: codes and scales must belong together, and be of those
// weights that the manifest says are quantized.
void verify_structure(const VerifyOptions& options,
                      const Manifest& manifest,
                      VerifyReport& report) {
  Findings findings;
  try {
    const Checkpoint out = Checkpoint::open(options.out);
    std::set<std::string> quantized;
    for (const TensorError& tensor : manifest.tensors) {
      quantized.insert(tensor.name.substr(0, tensor.name.find('[')));  // of a slice, its tensor
    }
    for (const SourceWeight& weight : find_weights(out.tensors(), out.config_text())) {
      const bool is_listed = quantized.erase(weight.entry.name) > 0;
      if (is_listed == weight.is_plain()) {
        findings.add(fmt::format("tensor {}: {}, but the manifest {} it as quantized",
                                 weight.entry.name,
                                 weight.is_plain() ? "not quantized" : "quantized",
                                 is_listed ? "lists" : "does not list"));
      } else if (weight.scales) {
        verify_scales(out, weight, findings);
      }
    }
    for (const std::string& name : quantized) {
      findings.add(fmt::format("tensor {}: it is missing", name));
    }
    findings.finish(
        fmt::format("structure: {} tensors in {} files, {} of them quantized with scales that fit",
                    out.tensors().size(),
                    out.shards().size(),
                    manifest.tensors.size()),
        report);
  } catch (const Error& error) {
    findings.add(error.message());
    findings.finish("", report);
  }
}

// The same in layout qwix, whose tensors are not those of a checkpoint that is read.
void verify_qwix_structure(const VerifyOptions& options, VerifyReport& report) {
  Findings findings;
  std::string passed;
  try {
    const QwixStructure structure = check_qwix_structure(options.out);
    for (const std::string& finding : structure.findings) {
      findings.add(finding);
    }
    passed = fmt::format(
        "structure: {} tensors in {} files as in qwix_abstract.json, {} parameters quantized with "
        "scales that fit",
        structure.num_tensors,
        structure.num_files,
        structure.num_quantized);
  } catch (const Error& error) {
    findings.add(error.message());
  }
  findings.finish(passed, report);
}

// Makes every byte again and compares it with the file.
void verify_bytes(const Context& context,
                  const VerifyOptions& options,
                  const Checkpoint& source,
                  const Plan& plan,
                  const std::vector<ActivationFold>& folds,
                  const TensorRanges& ranges,
                  const ColumnImportance& importance,
                  FeedbackFactors* feedback,
                  VerifyReport& report) {
  Findings findings;
  std::vector<File> files;
  for (const OutputShard& shard : plan.shards) {
    files.push_back(File::open_to_read(options.out / shard.file_name));
    std::string header(shard.header.size(), '\0');
    files.back().read_at(0, std::as_writable_bytes(std::span(header)));
    if (header != shard.header) {
      findings.add(
          fmt::format("{}: its header is not the one that the recipe gives", shard.file_name));
    }
  }
  if (read_text_file(options.out / "config.json", std::uint64_t{1} << 30) != plan.config) {
    findings.add("config.json is not the one that the source and the recipe give");
  }
  for (const TextFile& file : plan.beside) {
    if (read_text_file(options.out / file.name, std::uint64_t{1} << 30) != file.text) {
      findings.add(fmt::format("{} is not the one that the source and the recipe give", file.name));
    }
  }
  std::vector<RowProducer> workers;
  for (int worker = 0; worker < options.num_threads; ++worker) {
    workers.emplace_back(context, source, plan, folds, ranges, importance, feedback, kBufferBytes);
  }
  run_indexed(options.num_threads, plan.write_tasks.size(), [&](std::size_t index, int worker) {
    const WriteTask& task = plan.write_tasks[index];
    std::vector<std::byte> found;
    const Emit compare = [&](std::size_t shard,
                             std::uint64_t file_offset,
                             std::span<const std::byte> wanted) {
      found.resize(wanted.size());
      files[shard].read_at(file_offset, found);
      if (std::memcmp(found.data(), wanted.data(), wanted.size()) != 0) {
        findings.add(fmt::format(
            "tensor {}: bytes differ from what the source and the recipe give, in the {} from {}",
            plan.tensors[task.tensor].name,
            plan.tensors[task.tensor].action == Action::kCopy ? "bytes" : "rows",
            task.begin));
      }
    };
    ErrorSums ignored;
    workers[static_cast<std::size_t>(worker)].produce(task, compare, ignored);
  });
  findings.finish(fmt::format("source: {} tensors made again from {}, every byte equal",
                              plan.tensors.size(),
                              options.source->string()),
                  report);
}

void verify_function(const Context& context,
                     const VerifyOptions& options,
                     const Checkpoint& source,
                     const Plan& plan,
                     const ScaleTable& scales,
                     const std::vector<ActivationFold>& folds,
                     VerifyReport& report) {
  const std::vector<EdgeProof> edges = prove_function(
      context, source, plan, scales, folds, true_architecture(source, plan), options.num_threads);
  Findings findings;
  double exact = 0;
  double stored = 0;
  for (const EdgeProof& edge : edges) {
    exact = std::max(exact, edge.exact);
    stored = std::max(stored, edge.stored);
    if (!(edge.exact <= kExactTolerance && edge.stored <= kStoredTolerance)) {
      findings.add(fmt::format(
          "function: {} reads '{}' with a relative difference of {:.3g} ({:.3g} as stored): the "
          "folded model is not the same function",
          edge.reader,
          edge.activation,
          edge.exact,
          edge.stored));
    }
  }
  findings.finish(
      fmt::format(
          "function: {} readers keep their outputs, relative difference at most {:.1e} in double, "
          "{:.1e} as stored",
          edges.size(),
          exact,
          stored),
      report);
}

// What codes were rounded by is not in OUT: Gram matrices are large.
Statistics gptq_statistics(const VerifyOptions& options) {
  if (!options.statistics) {
    throw Error(ErrorCode::kUsage,
                "this checkpoint was rounded by gptq: to make its bytes again, give the statistics "
                "that the job had, --stats FILE.h5");
  }
  return read_statistics(*options.statistics);
}

}  // namespace

VerifyReport verify_checkpoint(const Context& context, const VerifyOptions& options) {
  if (options.function && !options.source) {
    throw Error(ErrorCode::kUsage,
                "--function compares with the source model: give it with --against SRC");
  }
  const Manifest manifest = read_manifest(options.out);
  VerifyReport report;
  verify_files(options, manifest, report);
  Recipe recipe;
  apply_recipe_json(manifest.recipe_json, recipe);
  if (recipe.layout == Layout::kQwix) {
    verify_qwix_structure(options, report);
  } else {
    verify_structure(options, manifest, report);
  }
  if (!options.source) {
    return report;
  }
  const Checkpoint source = Checkpoint::open(*options.source);
  Plan plan = make_plan_without_search(source, recipe);
  if (!report.findings.empty()) {
    return report;  // what follows reads files that are known to be wrong
  }
  const ScaleTable scales = read_scales(options.out / kScalesName);
  const std::vector<ActivationFold> folds = make_fold_table(context, source, plan, scales);
  const std::vector<float> carried = carried_scales(source, plan);
  const TensorRanges ranges = {
      measure_weights(context, source, plan, folds, carried, kBufferBytes, options.num_threads),
      largest_inputs(plan, folds, read_input_maxima(options.out / kScalesName)),
      carried};
  const ColumnImportance importance(plan.architecture, read_importance(options.out / kScalesName));
  Statistics statistics;
  std::unique_ptr<FeedbackFactors> feedback;
  if (recipe.rounding == Rounding::kGptq) {
    statistics = gptq_statistics(options);
    match_statistics(statistics, plan.architecture);
    feedback = std::make_unique<FeedbackFactors>(plan, statistics, *options.statistics);
  }
  verify_bytes(context, options, source, plan, folds, ranges, importance, feedback.get(), report);
  if (options.function) {
    verify_function(context, options, source, plan, scales, folds, report);
  }
  return report;
}

}  // namespace quantmill
