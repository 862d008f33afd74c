#include "plan/placement.h"

#include <string_view>
#include <unordered_map>
#include <utility>

#include "plan/kv_scales.h"

namespace quantmill {
namespace {

// Whether slices of a tensor are slices of an output tensor, too.
bool stays_stacked(const Plan& plan, const TensorWork& work) {
  return plan.architecture.tensors[work.tensor].slice &&
         (!work.is_quantized() || plan.recipe.layout == Layout::kGptOss);
}

// The output tensors of one work.
std::vector<StoredPart> parts_of(const Plan& plan, const TensorWork& work) {
  if (work.action == Action::kKvScale) {
    return {kv_scale_part(plan.recipe.layout, work.name)};
  }
  const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
  const TensorEntry& entry = plan.architecture.weights[tensor.stored].entry;
  if (work.is_quantized() && plan.recipe.layout == Layout::kGptOss) {
    return gpt_oss_parts(entry.name, entry.shape.front(), work.rows, work.cols);
  }
  if (work.is_quantized()) {
    return stored_parts(
        work.scheme,
        plan.recipe.layout,
        work.name,
        work.rows,
        work.cols,
        plan.recipe.input_scales == InputScales::kStatic && may_have_input_scale(work.scheme));
  }
  return {{work.name, work.stored, entry.shape, PartKind::kCodes, 1, false}};
}

}  // namespace

void place(const Checkpoint& checkpoint, Plan& plan) {
  std::vector<std::vector<StoredPart>> parts;  // of each work
  std::vector<TensorToPlace> wanted;
  for (const TensorWork& work : plan.tensors) {
    const std::vector<StoredPart>& own = parts.emplace_back(parts_of(plan, work));
    const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
    const std::size_t shard = plan.architecture.weights[tensor.stored].shard;
    if (stays_stacked(plan, work) && tensor.slice != 0) {
      continue;  // one tensor with the first slice
    }
    bool is_first = true;
    for (const StoredPart& part : own) {
      wanted.push_back(
          {part.name, part.dtype, part.shape, checkpoint.shards()[shard].file_name, !is_first});
      is_first = false;
    }
  }
  plan.shards = place_tensors(wanted, plan.recipe.max_shard_bytes);
  std::unordered_map<std::string_view, std::pair<std::size_t, const TensorEntry*>> places;
  places.reserve(wanted.size());
  for (std::size_t shard = 0; shard < plan.shards.size(); ++shard) {
    plan.output_bytes += plan.shards[shard].size_bytes();
    for (const TensorEntry& entry : plan.shards[shard].tensors) {
      places.emplace(entry.name, std::pair(shard, &entry));
    }
  }
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    TensorWork& work = plan.tensors[index];
    const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
    for (const StoredPart& part : parts[index]) {
      const auto& [shard, entry] = places.at(part.name);
      OutputPlace& place = work.parts.emplace_back();
      place.shard = shard;
      place.file_offset = plan.shards[shard].header.size() + entry->begin;
      place.size_bytes = entry->size_bytes();
      if (stays_stacked(plan, work)) {
        place.size_bytes /= plan.architecture.weights[tensor.stored].entry.shape[0];
        place.file_offset += *tensor.slice * place.size_bytes;
      }
      place.weight_rows = part.weight_rows;
      place.kind = part.kind;
      place.stretches = part.turned ? part.shape.front() : 1;
      const std::uint64_t rows = place.rows_before(work.rows) * place.stretches;
      place.row_bytes = rows == 0 ? 0 : place.size_bytes / rows;
    }
  }
}

}  // namespace quantmill
