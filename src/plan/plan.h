#pragma once

// Everything that a job will read, compute and write, decided from headers alone. A pure function
// of its arguments: every rank makes the same plan.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/reader.h"
#include "plan/architecture.h"
#include "plan/arrangement.h"
#include "plan/qwix/parameter.h"
#include "plan/recipe.h"
#include "plan/selection.h"
#include "stats/statistics.h"

namespace quantmill {

enum class Action {
  kCopy,        // bytes as they are
  kFoldNorm,    // a norm divided by s
  kFoldLinear,  // a matrix or vector scaled and stored as floating point
  kQuantize,    // a matrix scaled and quantized
  kKvScale,     // the scale of a layer's keys or values in the cache, made from statistics alone
  kRearrange,   // elements as they are, each in another place
};

// Bytes of one output tensor, or of a slice of one.
struct OutputPlace {
  std::size_t shard = 0;  // index into Plan::shards
  std::uint64_t file_offset = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t weight_rows = 1;  // of the TensorWork, for each row of this
  PartKind kind = PartKind::kCodes;
  // Equally long pieces of the tensor, each with all rows: 1, or of a turned part its own rows.
  std::uint64_t stretches = 1;

  // Rows of this that begin with the rows before `weight_row` of the work.
  [[nodiscard]] std::uint64_t rows_before(std::uint64_t weight_row) const {
    return weight_row / weight_rows + (weight_row % weight_rows != 0 ? 1 : 0);
  }
};

// Activations (indices into the architecture's) whose s acts on a tensor, each on columns or rows
// of its own.
struct TensorFolds {
  std::vector<std::size_t> columns;  // that are multiplied, as a reader
  std::vector<std::size_t> rows;     // rows, norm channels or bias elements that are divided

  [[nodiscard]] bool empty() const { return columns.empty() && rows.empty(); }
};

// What becomes of a tensor of the architecture, or of some rows of it: an output tensor, or a slice
// of one.
struct TensorWork {
  std::size_t tensor = 0;  // index into ResolvedArchitecture::tensors
  std::string name;        // of the output tensor
  Action action = Action::kCopy;
  Scheme scheme = Scheme::kMxfp4;  // kQuantize
  // Of the matrix [rows, cols] that is made: the linear's own orientation if it is quantized, as it
  // is stored otherwise. A vector is one row, or one column if it is divided.
  std::uint64_t rows = 1;
  std::uint64_t cols = 0;
  RowRange source_rows;       // kQuantize: the linear's rows that these rows are made of
  bool copies_codes = false;  // kQuantize: the source has the scheme's codes, and nothing is scaled
  // kQuantize, has_tensor_scale: the first of the works whose largest magnitude decides the scale,
  // an index into Plan::tensors.
  std::size_t shares_scale_with = 0;
  DType stored = DType::kU8;       // dtype in the output
  std::vector<OutputPlace> parts;  // the weight or its codes, then scales (stored_parts)
  // Layout qwix, where elements do not lie in the output as they do in the work: where they go.
  // parts are then what is made before, and where it goes first.
  std::vector<ArrangedTarget> targets;

  [[nodiscard]] bool is_quantized() const { return action == Action::kQuantize; }

  // That are made at once: tasks and pieces of tasks are cut between them.
  [[nodiscard]] std::uint64_t rows_together() const;
  // Of the scheme or the type that it is stored as.
  [[nodiscard]] std::string_view stored_name() const;

  [[nodiscard]] std::uint64_t output_bytes() const;
};

// A piece of one TensorWork: rows [begin, end), or bytes for kCopy. Its size depends on the
// tensor's shape alone, so that sums taken task by task do not depend on who did what.
struct WriteTask {
  std::size_t tensor = 0;  // index into Plan::tensors
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t cost = 0;  // bytes read and written
};

// Scaling::kBlockGrid tries many candidates: of each reader it looks at so many rows.
constexpr std::uint64_t kBlockGridRows = 512;

// Rows begin, begin + step, … < end of one reader, whose error is added up for every candidate s of
// a fold group.
struct SearchTask {
  std::size_t group = 0;       // index into ResolvedArchitecture::fold_groups
  std::size_t activation = 0;  // whose statistic weighs the columns, and which columns
  std::size_t tensor = 0;      // index into ResolvedArchitecture::tensors
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t step = 1;
  std::uint64_t cost = 0;  // elements that are read
};

// What is decided for a fold group before the search.
struct GroupPlan {
  bool searched = false;                // or, in a plan without a search, given its scales
  std::string reason;                   // why s stays 1, if it does
  std::optional<std::uint64_t> tokens;  // that its statistics were recorded on, where they say so
};

// A work that is kKvScale.
struct KvScale {
  std::size_t work = 0;                   // index into Plan::tensors
  std::string maxima;                     // whose record: "layers.3.self_attn.v_cache"
  std::optional<std::size_t> activation;  // whose s divides what is cached
};

struct Plan {
  Recipe recipe;
  ResolvedArchitecture architecture;
  std::vector<SchemeChoice> choices;  // one per tensor of the architecture
  std::vector<TensorFolds> folds;     // as many
  std::vector<TensorWork> tensors;    // in the checkpoint's order
  std::vector<KvScale> kv_scales;
  std::vector<OutputShard> shards;
  std::vector<GroupPlan> groups;          // one per fold group
  std::vector<SearchTask> search_tasks;   // by group, reader, row
  std::vector<WriteTask> write_tasks;     // by tensor, row
  std::string config;                     // config.json of the output
  std::vector<QwixParameter> parameters;  // of layout qwix
  std::vector<TextFile> beside;           // files that are written beside the shards
  // Of what is chosen for a target, by tensor of the architecture: the relative error that the
  // choice went by. Filled by who knows it, for the plan's texts.
  std::vector<std::optional<double>> target_errors;
  std::vector<std::string> notices;  // what a user should know before the night
  std::uint64_t source_bytes = 0;    // of tensors
  std::uint64_t output_bytes = 0;    // of files, without what is copied beside the weights
};

// Statistics are needed by scaling awq-grid; an empty table otherwise.
// Errors: what resolve_architecture, check_recipe and output_config refuse; kInput: nothing to
// quantize, columns that are not a multiple of 32, a source type that can't be quantized, part of a
// fused group kept (names the pair), statistics that are missing for some layers of an activation
// (named), of the wrong length, or that match nothing.
Plan make_plan(const Checkpoint& checkpoint, const Statistics& statistics, const Recipe& recipe);

// The parts of make_plan, for callers that bring scales instead of statistics (verify,
// --compat-scales).
Plan make_plan_without_search(const Checkpoint& checkpoint, const Recipe& recipe);

// The same for callers that make several plans of one checkpoint: `architecture` is
// model_architecture of it and of a recipe with the same architecture, parts and compat.
Plan make_plan(const Checkpoint& checkpoint,
               const Statistics& statistics,
               const Recipe& recipe,
               ResolvedArchitecture architecture);
Plan make_plan_without_search(const Checkpoint& checkpoint,
                              const Recipe& recipe,
                              ResolvedArchitecture architecture);

// Bytes that are read for one work: its share of a weight's codes and scales.
std::uint64_t source_bytes(const Checkpoint& checkpoint, const Plan& plan, const TensorWork& work);

// The dtype of a plain weight, the encoding of another.
std::string_view source_type_name(const SourceWeight& weight);

// Bytes by type or format ("BF16", "mxfp4" …).
using TypeBytes = std::map<std::string, std::uint64_t>;

// Of the tensors that are read, and of those that are written.
TypeBytes source_bytes_by_type(const Checkpoint& checkpoint, const Plan& plan);
TypeBytes output_bytes_by_type(const Plan& plan);

// Elements of the weights that are written, and of those among them that are quantized.
struct ParameterCounts {
  std::uint64_t all = 0;
  std::uint64_t quantized = 0;
};

ParameterCounts count_parameters(const Plan& plan);

// The architecture that plans of this recipe have. Errors as resolve_architecture.
ResolvedArchitecture model_architecture(const Checkpoint& checkpoint, const Recipe& recipe);

// The architecture of the model as it really runs: the plan's own, or with Compat::kSeed, whose
// plan follows the script's beliefs, the one that config.json calls for.
ResolvedArchitecture true_architecture(const Checkpoint& checkpoint, const Plan& plan);

// Chooses the record of each activation: the first of its names that is there, with any of the
// architecture's prefixes or none.
void match_statistics(const Statistics& statistics, ResolvedArchitecture& architecture);

// Mean |x| of a fold group: of its activations' statistics, weighted by token count (those of
// fewer than min_tokens do not count); one value per
// channel; match_statistics has been called. Where several columns share a channel (ColumnMap)
// their mean counts. Empty if no activation has statistics.
std::vector<double> pooled_absmean(const ResolvedArchitecture& architecture,
                                   const FoldGroup& group,
                                   const Statistics& statistics,
                                   std::uint64_t min_tokens);

// The plan as text for people, and as JSON.
std::string describe_plan(const Plan& plan, const Checkpoint& checkpoint);
std::string plan_to_json(const Plan& plan);

}  // namespace quantmill
