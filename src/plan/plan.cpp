#include "plan/plan.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/pattern.h"
#include "kernels/convert.h"
#include "kernels/mx.h"
#include "plan/quark_config.h"
#include "plan/search_plan.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kTaskElements = std::uint64_t{1} << 21;  // of a matrix: 4 MiB of BF16
constexpr std::uint64_t kCopyTaskBytes = std::uint64_t{1} << 23;

ResolvedArchitecture resolve_true(const Checkpoint& checkpoint,
                                  const Recipe& recipe,
                                  const std::string& config) {
  const std::string json = recipe.architecture.empty() ? find_architecture(config)
                                                       : load_architecture(recipe.architecture);
  return resolve_architecture(json, config, checkpoint, recipe.allow_unknown);
}

ResolvedArchitecture resolve(const Checkpoint& checkpoint,
                             const Recipe& recipe,
                             const std::string& config) {
  ResolvedArchitecture architecture = resolve_true(checkpoint, recipe, config);
  if (recipe.compat == Compat::kSeed) {
    // The same family as the script sees it: its own activations, and so its own fold groups.
    architecture = resolve_architecture(
        load_architecture(architecture.name + "-seed"), config, checkpoint, recipe.allow_unknown);
  }
  return architecture;
}

bool is_kept(const ModelTensor& tensor, const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return matches_pattern(pattern, tensor.name) || matches_pattern(pattern, tensor.module);
  });
}

// Which tensors become the scheme's codes. Refuses patterns that match nothing and fused groups
// that would be mixed.
std::vector<bool> choose_quantized(const ResolvedArchitecture& architecture, const Recipe& recipe) {
  for (const std::string& pattern : recipe.keep) {
    if (std::ranges::none_of(architecture.tensors, [&](const ModelTensor& tensor) {
          return is_kept(tensor, {pattern});
        })) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format(
              "--keep {} matches no tensor and no module of the checkpoint; patterns are matched "
              "against whole names, e.g. '*.down_proj' or 'layers.0.*'",
              pattern));
    }
  }
  std::vector<bool> quantized;
  std::map<std::string, std::size_t> first_of_group;
  for (std::size_t index = 0; index < architecture.tensors.size(); ++index) {
    const ModelTensor& tensor = architecture.tensors[index];
    quantized.push_back(tensor.quantizable && !is_kept(tensor, recipe.keep));
    if (!tensor.quantizable || tensor.fused_group.empty()) {
      continue;
    }
    const auto [first, is_new] = first_of_group.try_emplace(tensor.fused_group, index);
    if (!is_new && quantized[first->second] != quantized[index]) {
      const std::size_t kept = quantized[index] ? first->second : index;
      const std::size_t other = quantized[index] ? index : first->second;
      throw Error(
          ErrorCode::kUsage,
          fmt::format(
              "--keep leaves {} unquantized but not {}: servers fuse both into {}, which has one "
              "format; keep all of its parts or none",
              architecture.tensors[kept].name,
              architecture.tensors[other].name,
              tensor.fused_group));
    }
  }
  if (std::ranges::none_of(quantized, [](bool chosen) { return chosen; })) {
    throw Error(
        ErrorCode::kUsage,
        "nothing is left to quantize: every tensor that could be is kept; use fewer --keep");
  }
  return quantized;
}

// What a tensor that is not quantized is stored as.
DType stored_dtype(const ModelTensor& tensor, DType source, const Recipe& recipe) {
  if (!is_convertible(source)) {
    return source;
  }
  if (recipe.layout == Layout::kPlain && tensor.role != TensorRole::kOther) {
    return recipe.scheme == Scheme::kF32 ? DType::kF32 : DType::kBf16;
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
      if (!plan.tensors[reader].column_activation) {
        plan.tensors[reader].column_activation = index;
      }
    }
    plan.tensors[activation.producer->tensor].row_activation = index;
    if (activation.producer->bias) {
      plan.tensors[*activation.producer->bias].row_activation = index;
    }
  }
}

// Every group that can be folded takes the scales that it is given.
void allow_all_groups(Plan& plan) {
  const bool scaling =
      plan.recipe.scaling != Scaling::kNone && plan.recipe.fold_scales != FoldScales::kOff;
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    const std::string& reason = plan.architecture.fold_groups[group].no_fold_reason;
    plan.groups[group] = {scaling && reason.empty(), scaling ? reason : "scaling is off"};
  }
}

void check_quantizable(const ModelTensor& tensor, const TensorEntry& entry) {
  if (!is_convertible(entry.dtype) || entry.shape.size() != 2) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "tensor {}: {} with {} dimensions can't be quantized; a matrix of BF16, F16 or F32 is "
            "wanted. Leave it as it is with --keep '{}'",
            tensor.name,
            dtype_name(entry.dtype),
            entry.shape.size(),
            tensor.module));
  }
  if (entry.shape[1] % kMxBlock != 0) {
    throw Error(ErrorCode::kInput,
                fmt::format("tensor {}: {} columns are not a multiple of the MX block of {}; leave "
                            "it as it is with "
                            "--keep '{}'",
                            tensor.name,
                            entry.shape[1],
                            kMxBlock,
                            tensor.module));
  }
}

Action choose_action(const ModelTensor& tensor,
                     const TensorEntry& entry,
                     bool quantize,
                     const TensorWork& work) {
  if (quantize) {
    check_quantizable(tensor, entry);
    return Action::kQuantize;
  }
  const bool folded = work.column_activation || work.row_activation;
  if (folded && !is_convertible(entry.dtype)) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("tensor {}: {} can't be scaled, and the folds need it; use --fold-scales off",
                    tensor.name,
                    dtype_name(entry.dtype)));
  }
  if (work.row_activation && tensor.role == TensorRole::kNorm) {
    return Action::kFoldNorm;
  }
  return folded || work.stored != entry.dtype ? Action::kFoldLinear : Action::kCopy;
}

// Fills actions, shapes and stored types.
void decide_tensors(const Checkpoint& checkpoint, const std::vector<bool>& quantized, Plan& plan) {
  const bool quark = plan.recipe.layout == Layout::kQuark;
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    const TensorEntry& entry = checkpoint.tensors()[index].entry;
    const ModelTensor& tensor = plan.architecture.tensors[index];
    TensorWork& work = plan.tensors[index];
    work.source = index;
    work.cols = entry.shape.size() == 2 ? entry.shape[1] : entry.num_elements();
    work.rows = entry.shape.size() == 2 ? entry.shape[0] : 1;
    work.stored = stored_dtype(tensor, entry.dtype, plan.recipe);
    work.action = choose_action(tensor, entry, quark && quantized[index], work);
    if (work.is_quantized()) {
      work.stored = DType::kU8;
    }
    if (work.row_activation && work.action == Action::kFoldLinear && entry.shape.size() != 2) {
      std::swap(work.rows, work.cols);  // a bias: one element a row
    }
  }
}

void place(const Checkpoint& checkpoint, Plan& plan) {
  std::vector<TensorToPlace> wanted;
  for (const TensorWork& work : plan.tensors) {
    const SourceTensor& source = checkpoint.tensors()[work.source];
    const std::string& file_name = checkpoint.shards()[source.shard].file_name;
    if (!work.is_quantized()) {
      wanted.push_back({source.entry.name, work.stored, source.entry.shape, file_name});
      continue;
    }
    wanted.push_back({source.entry.name, DType::kU8, {work.rows, work.cols / 2}, file_name});
    wanted.push_back({source.entry.name + "_scale",
                      DType::kU8,
                      {work.rows, work.cols / kMxBlock},
                      file_name,
                      true});
  }
  plan.shards = place_tensors(wanted, plan.recipe.max_shard_bytes);
  std::unordered_map<std::string, OutputPlace> places;
  for (std::size_t shard = 0; shard < plan.shards.size(); ++shard) {
    plan.output_bytes += plan.shards[shard].size_bytes();
    for (const TensorEntry& entry : plan.shards[shard].tensors) {
      places[entry.name] = {
          shard, plan.shards[shard].header.size() + entry.begin, entry.size_bytes()};
    }
  }
  for (TensorWork& work : plan.tensors) {
    const std::string& name = checkpoint.tensors()[work.source].entry.name;
    work.weight = places.at(name);
    if (work.is_quantized()) {
      work.scales = places.at(name + "_scale");
    }
  }
}

void cut_write_tasks(const Checkpoint& checkpoint, Plan& plan) {
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    const TensorWork& work = plan.tensors[index];
    const std::uint64_t source_bytes = checkpoint.tensors()[work.source].entry.size_bytes();
    const std::uint64_t output_bytes =
        work.weight.size_bytes + (work.scales ? work.scales->size_bytes : 0);
    plan.source_bytes += source_bytes;
    const bool by_bytes = work.action == Action::kCopy;
    const std::uint64_t total = by_bytes ? source_bytes : work.rows;
    const std::uint64_t piece =
        by_bytes
            ? kCopyTaskBytes
            : std::max<std::uint64_t>(1, kTaskElements / std::max<std::uint64_t>(1, work.cols));
    for (std::uint64_t begin = 0; begin < total; begin += piece) {
      const std::uint64_t end = std::min(total, begin + piece);
      const double share = static_cast<double>(end - begin) / static_cast<double>(total);
      plan.write_tasks.push_back(
          {index,
           begin,
           end,
           static_cast<std::uint64_t>(share * static_cast<double>(source_bytes + output_bytes))});
    }
  }
}

// With statistics, groups are searched where they allow it; without, scales come from elsewhere for
// every group that can be folded at all.
Plan plan_job(const Checkpoint& checkpoint, const Recipe& recipe, const Statistics* statistics) {
  check_recipe(recipe);
  Plan plan;
  plan.recipe = recipe;
  const std::string config = checkpoint.config_text();
  plan.architecture = resolve(checkpoint, recipe, config);
  plan.tensors.resize(checkpoint.tensors().size());
  plan.groups.resize(plan.architecture.fold_groups.size());
  const std::vector<bool> quantized = choose_quantized(plan.architecture, recipe);
  if (statistics != nullptr) {
    decide_groups(*statistics, quantized, plan);
  } else {
    allow_all_groups(plan);
  }
  assign_folds(plan);
  decide_tensors(checkpoint, quantized, plan);
  place(checkpoint, plan);
  cut_write_tasks(checkpoint, plan);
  if (statistics != nullptr) {
    cut_search_tasks(*statistics, quantized, plan);
  }
  plan.config = output_config(config, recipe, exclude_list(plan.architecture, quantized));
  return plan;
}

}  // namespace

Plan make_plan(const Checkpoint& checkpoint, const Statistics& statistics, const Recipe& recipe) {
  return plan_job(checkpoint, recipe, &statistics);
}

Plan make_plan_without_search(const Checkpoint& checkpoint, const Recipe& recipe) {
  return plan_job(checkpoint, recipe, nullptr);
}

ResolvedArchitecture true_architecture(const Checkpoint& checkpoint, const Plan& plan) {
  return plan.recipe.compat == Compat::kSeed
             ? resolve_true(checkpoint, plan.recipe, checkpoint.config_text())
             : plan.architecture;
}

}  // namespace quantmill
