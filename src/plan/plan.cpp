#include "plan/plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/convert.h"
#include "kernels/mx.h"
#include "plan/architecture_file.h"
#include "plan/carried_codes.h"
#include "plan/kv_scales.h"
#include "plan/module_patterns.h"
#include "plan/placement.h"
#include "plan/quark_config.h"
#include "plan/qwix/layout.h"
#include "plan/search_plan.h"
#include "plan/selection.h"
#include "plan/tensor_parallel.h"
#include "plan/tensor_scales.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kTaskElements = std::uint64_t{1} << 21;  // of a matrix: 4 MiB of BF16
// Of one that is turned: the more rows, the longer are the pieces that are written.
constexpr std::uint64_t kArrangedTaskElements = std::uint64_t{1} << 24;
constexpr std::uint64_t kCopyTaskBytes = std::uint64_t{1} << 23;

ResolvedArchitecture resolve_true(const Checkpoint& checkpoint,
                                  const Recipe& recipe,
                                  const std::string& config) {
  return resolve_architecture(
      choose_architecture(recipe.architecture, config), config, checkpoint, recipe.allow_unknown);
}

// What a tensor that is not quantized is stored as.
DType stored_dtype(const ModelTensor& tensor,
                   const TensorFolds& folds,
                   DType source,
                   const Recipe& recipe) {
  if (!is_convertible(source) || !is_included(tensor.part.str(), recipe)) {
    return source;
  }
  if (is_floating_point(recipe.scheme) && (tensor.role != TensorRole::kOther || !folds.empty())) {
    return recipe.scheme == Scheme::kF32   ? DType::kF32
           : recipe.scheme == Scheme::kF16 ? DType::kF16
                                           : DType::kBf16;
  }
  return recipe.compat == Compat::kSeed ? DType::kBf16 : source;
}

// The first activation that acts on each tensor's columns and rows, among those of groups that are
// scaled.
void assign_folds(Plan& plan) {
  const ResolvedArchitecture& architecture = plan.architecture;
  std::vector<bool> scaled(architecture.activations.size(), false);
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    for (const std::size_t activation : architecture.fold_groups[group].activations) {
      scaled[activation] = plan.groups[group].searched;
    }
  }
  for (std::size_t index = 0; index < architecture.activations.size(); ++index) {
    const Activation& activation = architecture.activations[index];
    if (!scaled[index]) {
      continue;
    }
    for (const std::size_t reader : activation.readers) {
      std::vector<std::size_t>& columns = plan.folds[reader].columns;
      // The same columns may be read from another activation of the group, with the same s.
      if (std::ranges::none_of(columns, [&](std::size_t other) {
            return architecture.activations[other].columns == activation.columns;
          })) {
        columns.push_back(index);
      }
    }
    plan.folds[activation.producer->tensor].rows.push_back(index);
    if (activation.producer->bias) {
      plan.folds[*activation.producer->bias].rows.push_back(index);
    }
  }
}

// Every group that can be folded takes the scales that it is given.
void allow_all_groups(Plan& plan) {
  const bool scaling =
      plan.recipe.scaling != Scaling::kNone && plan.recipe.fold_scales != FoldScales::kOff;
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    const std::string& reason = plan.architecture.fold_groups[group].no_fold_reason;
    plan.groups[group] = {scaling && reason.empty(), scaling ? reason : "scaling is off", {}};
  }
}

void check_quantizable(const ModelTensor& tensor, DType dtype, Scheme scheme, bool stays_stacked) {
  if (!is_convertible(dtype)) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "tensor {}: {} can't be quantized; a matrix of BF16, F16 or F32 is wanted. Leave it as "
            "it is with --keep '{}'",
            tensor.name,
            dtype_name(dtype),
            tensor.module()));
  }
  const std::uint64_t block = columns_together(scheme);
  if (tensor.in_features() % block != 0) {
    throw Error(ErrorCode::kInput,
                fmt::format("tensor {}: {} columns are not a multiple of the {} that share a scale "
                            "in {}; leave it as it is with "
                            "--keep '{}'",
                            tensor.name,
                            tensor.in_features(),
                            block,
                            scheme_name(scheme),
                            tensor.module()));
  }
  std::uint64_t written = 0;
  for (const WrittenSlice& slice : tensor.written_as) {
    written += slice.rows.num_rows();
  }
  if (tensor.slice && !stays_stacked && written != tensor.out_features()) {
    throw Error(ErrorCode::kInput,
                fmt::format("tensor {}: the architecture's \"written_as\" names tensors for {} of "
                            "its {} rows, so servers could not read it quantized; leave it as it "
                            "is with --keep '{}'",
                            tensor.name,
                            written,
                            tensor.out_features(),
                            tensor.module()));
  }
}

// What is made of a tensor that is quantized: one output tensor, or one for each part of a slice.
void add_quantized(const ModelTensor& tensor,
                   const SourceWeight& source,
                   bool may_copy_codes,
                   bool stays_stacked,
                   TensorWork work,
                   std::vector<TensorWork>& all) {
  work.action = Action::kQuantize;
  work.stored = DType::kU8;
  work.cols = tensor.in_features();
  const std::uint64_t rows = tensor.out_features();
  std::vector<WrittenSlice> parts = tensor.written_as;
  if (!tensor.slice || stays_stacked) {
    parts = {{tensor.slice ? tensor.name : work.name, {0, 1, rows, rows}}};
  }
  for (const WrittenSlice& part : parts) {
    work.name = part.name;
    work.rows = part.rows.num_rows();
    work.source_rows = part.rows;
    work.copies_codes = may_copy_codes && holds_codes(source, part.rows, work.scheme);
    all.push_back(work);
  }
}

Action choose_action(const ModelTensor& tensor,
                     const TensorFolds& folds,
                     DType source,
                     DType stored) {
  if (!folds.empty() && !is_convertible(source)) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("tensor {}: {} can't be scaled, and the folds need it; use --fold-scales off",
                    tensor.name,
                    dtype_name(source)));
  }
  if (!folds.rows.empty() && tensor.role == TensorRole::kNorm) {
    return Action::kFoldNorm;
  }
  return !folds.empty() || stored != source ? Action::kFoldLinear : Action::kCopy;
}

// Codes can be read as the rows of a linear only.
void check_decodable(const ModelTensor& tensor, const SourceWeight& source) {
  if (source.is_plain()) {
    return;
  }
  if (tensor.shape.size() != 2 || tensor.transposed != source.is_transposed_linear()) {
    throw Error(ErrorCode::kInput,
                fmt::format("tensor {}: stored as {} codes, which are read row by row, but the "
                            "architecture describes no linear whose rows these are",
                            tensor.name,
                            encoding_name(source.encoding)));
  }
}

// Fills plan.tensors, but for their places.
void decide_tensors(Plan& plan) {
  plan.tensors.reserve(plan.architecture.tensors.size());  // without much less or more
  for (std::size_t index = 0; index < plan.architecture.tensors.size(); ++index) {
    const ModelTensor& tensor = plan.architecture.tensors[index];
    const SourceWeight& source = plan.architecture.weights[tensor.stored];
    const TensorEntry& entry = source.entry;
    const TensorFolds& folds = plan.folds[index];
    TensorWork work;
    work.tensor = index;
    work.name = entry.name;
    if (plan.architecture.tied && !plan.recipe.untie && plan.architecture.tied->dropped == index) {
      continue;
    }
    check_decodable(tensor, source);
    std::optional<Scheme> scheme = plan.choices[index].scheme;
    const bool stays_stacked =
        plan.recipe.layout == Layout::kGptOss || plan.recipe.layout == Layout::kQwix;
    if (plan.recipe.scheme == Scheme::kSource && !tensor.quantizable) {
      scheme = Scheme::kSource;  // what can't be quantized anew can be carried over
    }
    if (scheme == Scheme::kSource && !source.is_plain()) {
      work.scheme = Scheme::kSource;
      add_quantized(tensor, source, true, true, std::move(work), plan.tensors);
      continue;
    }
    if (scheme && *scheme != Scheme::kSource && !is_floating_point(*scheme)) {
      check_quantizable(tensor, entry.dtype, *scheme, stays_stacked);
      work.scheme = *scheme;
      add_quantized(tensor, source, folds.empty(), stays_stacked, std::move(work), plan.tensors);
      continue;
    }
    work.stored = stored_dtype(tensor, folds, entry.dtype, plan.recipe);
    const bool is_matrix = tensor.shape.size() == 2;
    work.action = choose_action(tensor, folds, entry.dtype, work.stored);
    if (!source.is_plain()) {
      work.action = Action::kFoldLinear;
    }
    work.cols = is_matrix ? tensor.shape[1] : tensor.num_elements();
    work.rows = is_matrix ? tensor.shape[0] : 1;
    if (!folds.rows.empty() && work.action == Action::kFoldLinear && !is_matrix) {
      std::swap(work.rows, work.cols);
    }
    plan.tensors.push_back(std::move(work));
  }
}

void cut_write_tasks(const Checkpoint& checkpoint, Plan& plan) {
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    const TensorWork& work = plan.tensors[index];
    const std::uint64_t input_bytes = source_bytes(checkpoint, plan, work);
    plan.source_bytes += input_bytes;
    const bool by_bytes = work.action == Action::kCopy;
    const std::uint64_t total = by_bytes ? input_bytes : work.rows;
    const std::uint64_t together = work.rows_together();
    const std::uint64_t elements = work.targets.empty() ? kTaskElements : kArrangedTaskElements;
    const std::uint64_t rows = elements / std::max<std::uint64_t>(1, work.cols);
    const std::uint64_t piece =
        by_bytes ? kCopyTaskBytes : std::max(together, rows / together * together);
    for (std::uint64_t begin = 0; begin < total; begin += piece) {
      const std::uint64_t end = std::min(total, begin + piece);
      const double share = static_cast<double>(end - begin) / static_cast<double>(total);
      plan.write_tasks.push_back(
          {index,
           begin,
           end,
           static_cast<std::uint64_t>(share *
                                      static_cast<double>(input_bytes + work.output_bytes()))});
    }
  }
}

std::vector<std::string> excluded(const Plan& plan) {
  std::vector<bool> quantized;
  for (const SchemeChoice& choice : plan.choices) {
    quantized.push_back(choice.is_quantized());
  }
  return exclude_list(plan.architecture, quantized, plan.recipe.layout);
}

std::vector<SchemeModules> modules_of(const Plan& plan) {
  std::vector<QuantizedModule> modules;
  for (const TensorWork& work : plan.tensors) {
    if (work.is_quantized()) {
      modules.push_back(
          {module_of(work.name), plan.architecture.tensors[work.tensor].fused_group, work.scheme});
    }
  }
  return modules_by_scheme(modules,
                           plan.recipe.scheme,
                           plan.architecture.prefixes,
                           plan.architecture.server_layer_offset);
}

// With statistics, groups are searched where they allow it; without, scales come from elsewhere for
// every group that can be folded at all.
Plan plan_job(const Checkpoint& checkpoint,
              const Recipe& recipe,
              const Statistics* statistics,
              ResolvedArchitecture architecture) {
  check_recipe(recipe);
  Plan plan;
  plan.recipe = recipe;
  const std::string config = checkpoint.config_text();
  plan.architecture = std::move(architecture);
  plan.folds.resize(plan.architecture.tensors.size());
  plan.groups.resize(plan.architecture.fold_groups.size());
  plan.choices = choose_schemes(plan.architecture, recipe);
  if (statistics != nullptr) {
    match_statistics(*statistics, plan.architecture);
    decide_groups(*statistics, plan);
    decide_input_scales(*statistics, plan);
  } else {
    allow_all_groups(plan);
    if (plan.recipe.input_scales == InputScales::kAuto) {
      plan.recipe.input_scales = InputScales::kNone;
    }
  }
  assign_folds(plan);
  decide_tensors(plan);
  if (recipe.kv_cache != KvCache::kNone) {
    add_kv_scales(statistics, plan);
  }
  if (recipe.layout == Layout::kQwix) {
    place_qwix(checkpoint, config, plan);
  } else {
    place(checkpoint, plan);
    note_fusion_problems(plan);
  }
  share_tensor_scales(plan);  // last: a JAX model may leave works out
  cut_write_tasks(checkpoint, plan);
  if (statistics != nullptr) {
    cut_search_tasks(*statistics, plan);
  }
  plan.config = output_config(config, plan.recipe, modules_of(plan), excluded(plan));
  return plan;
}

}  // namespace

Plan make_plan(const Checkpoint& checkpoint, const Statistics& statistics, const Recipe& recipe) {
  return make_plan(checkpoint, statistics, recipe, model_architecture(checkpoint, recipe));
}

Plan make_plan(const Checkpoint& checkpoint,
               const Statistics& statistics,
               const Recipe& recipe,
               ResolvedArchitecture architecture) {
  return plan_job(checkpoint, recipe, &statistics, std::move(architecture));
}

Plan make_plan_without_search(const Checkpoint& checkpoint, const Recipe& recipe) {
  return make_plan_without_search(checkpoint, recipe, model_architecture(checkpoint, recipe));
}

Plan make_plan_without_search(const Checkpoint& checkpoint,
                              const Recipe& recipe,
                              ResolvedArchitecture architecture) {
  return plan_job(checkpoint, recipe, nullptr, std::move(architecture));
}

ResolvedArchitecture model_architecture(const Checkpoint& checkpoint, const Recipe& recipe) {
  const std::string config = checkpoint.config_text();
  ResolvedArchitecture architecture = resolve_true(checkpoint, recipe, config);
  if (recipe.compat == Compat::kSeed) {
    // The same family as the script sees it: its own activations, and so its own fold groups.
    architecture = resolve_architecture(
        load_architecture(architecture.name + "-seed"), config, checkpoint, recipe.allow_unknown);
  }
  for (FoldGroup& group : architecture.fold_groups) {
    if (!is_included(group.part, recipe)) {
      group.no_fold_reason =
          fmt::format("it is of the part {0}, which --include {0} quantizes", group.part);
    }
  }
  return architecture;
}

ResolvedArchitecture true_architecture(const Checkpoint& checkpoint, const Plan& plan) {
  return plan.recipe.compat == Compat::kSeed
             ? resolve_true(checkpoint, plan.recipe, checkpoint.config_text())
             : plan.architecture;
}

}  // namespace quantmill
