#include "pipeline/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "checkpoint/reader.h"
#include "kernels/convert.h"
#include "pipeline/carried_scales.h"
#include "pipeline/findings.h"
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
constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;

std::optional<std::string> problem_of(const std::filesystem::path& folder,
                                      const ManifestFile& file) {
  const std::filesystem::path path = folder / file.name;
  if (!std::filesystem::is_regular_file(path)) {
    return fmt::format("{}: the file is missing", file.name);
  }
  if (const std::uint64_t size = std::filesystem::file_size(path); size != file.size_bytes) {
    return fmt::format("{}: {} bytes, the manifest says {}", file.name, size, file.size_bytes);
  }
  if (const std::string hash = hash_file(path); hash != file.xxh128) {
    return fmt::format(
        "{}: hash {}, the manifest says {}; the file was changed", file.name, hash, file.xxh128);
  }
  return std::nullopt;
}

void verify_files(const Team& team,
                  const VerifyOptions& options,
                  const Manifest& manifest,
                  VerifyReport& report) {
  Findings findings;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> sizes;
  for (const ManifestFile& file : manifest.files) {
    bytes += file.size_bytes;
    sizes.push_back(file.size_bytes);
  }
  run_tasks(
      team,
      {"files",
       own_tasks(team, sizes, [](std::size_t) { return false; }),
       [&](std::size_t file) { return sizes[file]; },
       Work::kRead},
      [&](std::size_t file, int /*worker*/) {
        if (auto problem = problem_of(options.out, manifest.files[file])) {
          findings.add(file, std::move(*problem));
        }
      },
      [] {});
  findings.finish(team,
                  Check::kFiles,
                  fmt::format("files: {} files, {} bytes, sizes and hashes as in the manifest",
                              manifest.files.size(),
                              bytes),
                  report);
}

// Scales must be numbers above 0.
void verify_scales(const Checkpoint& out,
                   const SourceWeight& weight,
                   std::size_t index,
                   Findings& findings) {
  const SourceTensor& scales = out.tensors()[*weight.scales];
  std::vector<std::byte> bytes(scales.entry.size_bytes());
  out.read(scales, 0, bytes);
  if (!is_convertible(scales.entry.dtype)) {
    if (std::ranges::count(bytes, std::byte{255}) > 0) {
      findings.add(index,
                   fmt::format("tensor {}: a scale byte is 255, which is NaN", scales.entry.name));
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
      findings.add(index, fmt::format("tensor {}: a scale is {}", scales.entry.name, value));
      return;
    }
  }
}

// Reads the checkpoint as any other source: codes and scales must belong together, and be of those
// weights that the manifest says are quantized. Every rank does so, and looks at its share of the
// scales.
void verify_structure(const Team& team,
                      const VerifyOptions& options,
                      const Manifest& manifest,
                      VerifyReport& report) {
  Findings findings;
  std::string passed;
  try {
    const Checkpoint out = Checkpoint::open(options.out);
    std::set<std::string> quantized;
    for (const TensorError& tensor : manifest.tensors) {
      quantized.insert(tensor.name.substr(0, tensor.name.find('[')));  // of a slice, its tensor
    }
    const std::vector<SourceWeight> weights = find_weights(out.tensors(), out.config_text());
    const auto ranks = static_cast<std::size_t>(team.world.size());
    for (std::size_t index = 0; index < weights.size(); ++index) {
      const SourceWeight& weight = weights[index];
      const bool is_listed = quantized.erase(weight.entry.name) > 0;
      if (is_listed == weight.is_plain()) {
        findings.add_once(team,
                          index,
                          fmt::format("tensor {}: {}, but the manifest {} it as quantized",
                                      weight.entry.name,
                                      weight.is_plain() ? "not quantized" : "quantized",
                                      is_listed ? "lists" : "does not list"));
      } else if (weight.scales && index % ranks == static_cast<std::size_t>(team.world.rank())) {
        verify_scales(out, weight, index, findings);
      }
    }
    for (const std::string& name : quantized) {
      findings.add_once(team, weights.size(), fmt::format("tensor {}: it is missing", name));
    }
    passed =
        fmt::format("structure: {} tensors in {} files, {} of them quantized with scales that fit",
                    out.tensors().size(),
                    out.shards().size(),
                    manifest.tensors.size());
  } catch (const Error& error) {
    findings.add_once(team, 0, error.message());
  }
  findings.finish(team, Check::kStructure, passed, report);
}

// The same in layout qwix, whose tensors are not those of a checkpoint that is read.
void verify_qwix_structure(const Team& team, const VerifyOptions& options, VerifyReport& report) {
  Findings findings;
  std::string passed;
  try {
    const QwixStructure structure =
        team.is_leader() ? check_qwix_structure(options.out) : QwixStructure();
    for (const std::string& finding : structure.findings) {
      findings.add(0, finding);
    }
    passed = fmt::format(
        "structure: {} tensors in {} files as in qwix_abstract.json, {} parameters quantized with "
        "scales that fit",
        structure.num_tensors,
        structure.num_files,
        structure.num_quantized);
  } catch (const Error& error) {
    findings.add(0, error.message());
  }
  findings.finish(team, Check::kStructure, passed, report);
}

// Headers, config.json and what lies beside the shards: for one rank.
void verify_texts(const VerifyOptions& options, const Plan& plan, Findings& findings) {
  for (const OutputShard& shard : plan.shards) {
    std::string header(shard.header.size(), '\0');
    File::open_to_read(options.out / shard.file_name)
        .read_at(0, std::as_writable_bytes(std::span(header)));
    if (header != shard.header) {
      findings.add(
          0, fmt::format("{}: its header is not the one that the recipe gives", shard.file_name));
    }
  }
  if (read_text_file(options.out / "config.json", kMaxTextBytes) != plan.config) {
    findings.add(0, "config.json is not the one that the source and the recipe give");
  }
  for (const TextFile& file : plan.beside) {
    if (read_text_file(options.out / file.name, kMaxTextBytes) != file.text) {
      findings.add(0,
                   fmt::format("{} is not the one that the source and the recipe give", file.name));
    }
  }
}

// What the checks against the source go by.
struct Remaking {
  std::optional<Checkpoint> source;
  std::optional<Plan> plan;
  ScaleTable scales;
  std::vector<ActivationFold> folds;
  TensorRanges ranges;
  std::optional<ColumnImportance> importance;
  Statistics statistics;
  std::unique_ptr<FeedbackFactors> feedback;
};

// Makes every byte again and compares it with the file.
void verify_bytes(const Team& team,
                  const Context& context,
                  const VerifyOptions& options,
                  const Remaking& job,
                  VerifyReport& report) {
  const Plan& plan = *job.plan;
  Findings findings;
  std::vector<File> files;
  std::vector<RowProducer> workers;
  team.world.collectively([&] {
    if (team.is_leader()) {
      verify_texts(options, plan, findings);
    }
    for (const OutputShard& shard : plan.shards) {
      files.push_back(File::open_to_read(options.out / shard.file_name));
    }
    workers = make_workers<RowProducer>(team.num_threads,
                                        context,
                                        *job.source,
                                        plan,
                                        job.folds,
                                        job.ranges,
                                        *job.importance,
                                        job.feedback.get(),
                                        kBufferBytes);
  });
  const auto remake = [&](std::size_t index, int worker) {
    const WriteTask& task = plan.write_tasks[index];
    std::vector<std::byte> found;
    bool differs = false;
    const Emit compare =
        [&](std::size_t shard, std::uint64_t file_offset, std::span<const std::byte> wanted) {
          found.resize(wanted.size());
          files[shard].read_at(file_offset, found);
          differs = differs || std::memcmp(found.data(), wanted.data(), wanted.size()) != 0;
        };
    WorkErrors ignored;
    workers[static_cast<std::size_t>(worker)].produce(task, compare, ignored);
    if (differs) {
      const TensorWork& work = plan.tensors[task.tensor];
      findings.add(index + 1,
                   fmt::format("tensor {}: bytes differ from what the source and the recipe give, "
                               "in the {} from {}",
                               work.name,
                               work.action == Action::kCopy ? "bytes" : "rows",
                               task.begin));
    }
  };
  const std::vector<std::uint64_t> costs = costs_of(plan.write_tasks);
  run_tasks(team,
            {"source",
             own_tasks(team, costs, [](std::size_t) { return false; }),
             [&](std::size_t task) { return costs[task]; },
             Work::kEncode},
            remake,
            [] {});
  findings.finish(team,
                  Check::kSource,
                  fmt::format("source: {} tensors made again from {}, every byte equal",
                              plan.tensors.size(),
                              options.source->string()),
                  report);
}

void verify_function(const Team& team,
                     const Context& context,
                     const Remaking& job,
                     VerifyReport& report) {
  const std::vector<EdgeProof> edges = prove_function(team,
                                                      context,
                                                      *job.source,
                                                      *job.plan,
                                                      job.scales,
                                                      job.folds,
                                                      true_architecture(*job.source, *job.plan));
  Findings findings;
  double exact = 0;
  double stored = 0;
  for (std::size_t index = 0; index < edges.size(); ++index) {
    const EdgeProof& edge = edges[index];
    exact = std::max(exact, edge.exact);
    stored = std::max(stored, edge.stored);
    if (!(edge.exact <= kExactTolerance && edge.stored <= kStoredTolerance)) {
      findings.add_once(
          team,
          index,
          fmt::format("function: {} reads '{}' with a relative difference of {:.3g} ({:.3g} as "
                      "stored): the folded model is not the same function",
                      edge.reader,
                      edge.activation,
                      edge.exact,
                      edge.stored));
    }
  }
  findings.finish(
      team,
      Check::kFunction,
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

// The checks that need the source.
void verify_against(const Team& team,
                    const Context& context,
                    const VerifyOptions& options,
                    const Recipe& recipe,
                    VerifyReport& report) {
  Remaking job;
  team.world.collectively([&] {
    job.source = Checkpoint::open(*options.source);
    job.plan = make_plan_without_search(*job.source, recipe);
  });
  if (!report.findings.empty()) {
    return;  // what follows reads files that are known to be wrong
  }
  team.world.collectively([&] {
    const std::filesystem::path scales = options.out / kScalesName;
    job.scales = read_scales(scales);
    job.folds = make_fold_table(context, *job.source, *job.plan, job.scales);
    job.ranges.inputs = largest_inputs(*job.plan, job.folds, read_input_maxima(scales));
    job.importance.emplace(job.plan->architecture, read_importance(scales));
    if (recipe.rounding == Rounding::kGptq) {
      job.statistics = gptq_statistics(options);
      match_statistics(job.statistics, job.plan->architecture);
      job.feedback =
          std::make_unique<FeedbackFactors>(*job.plan, job.statistics, *options.statistics);
    }
  });
  JobJournal none;
  job.ranges.carried = carried_scales(team, *job.source, *job.plan);
  job.ranges.weights = measure_weights(
      team, context, *job.source, *job.plan, job.folds, job.ranges.carried, kBufferBytes, none);
  verify_bytes(team, context, options, job, report);
  if (options.function) {
    verify_function(team, context, job, report);
  }
}

}  // namespace

VerifyReport verify_checkpoint(const Team& team,
                               const Context& context,
                               const VerifyOptions& options) {
  Manifest manifest;
  Recipe recipe;
  team.world.collectively([&] {
    if (options.function && !options.source) {
      throw Error(ErrorCode::kUsage,
                  "--function compares with the source model: give it with --against SRC");
    }
    manifest = read_manifest(options.out);
    apply_recipe_json(manifest.recipe_json, recipe);
  });
  VerifyReport report;
  verify_files(team, options, manifest, report);
  if (recipe.layout == Layout::kQwix) {
    verify_qwix_structure(team, options, report);
  } else {
    verify_structure(team, options, manifest, report);
  }
  if (options.source) {
    verify_against(team, context, options, recipe, report);
  }
  return report;
}

}  // namespace quantmill
