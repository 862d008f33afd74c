#include "plan/placement.h"

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
  std::vector<TensorToPlace> wanted;
  wanted.reserve(2 * plan.tensors.size());
  std::vector<std::size_t> first_wanted;  // of each work
  first_wanted.reserve(plan.tensors.size());
  for (TensorWork& work : plan.tensors) {
    std::vector<StoredPart> parts = parts_of(plan, work);
    work.parts.reserve(parts.size());
    for (const StoredPart& part : parts) {
      OutputPlace& place = work.parts.emplace_back();
      place.weight_rows = part.weight_rows;
      place.kind = part.kind;
      place.stretches = part.turned ? part.shape.front() : 1;
    }
    const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
    if (stays_stacked(plan, work) && tensor.slice != 0) {
      first_wanted.push_back(first_wanted.back());  // one tensor with the first slice
      continue;
    }
    first_wanted.push_back(wanted.size());
    const std::size_t shard = plan.architecture.weights[tensor.stored].shard;
    for (StoredPart& part : parts) {
      wanted.push_back({std::move(part.name),
                        part.dtype,
                        std::move(part.shape),
                        checkpoint.shards()[shard].file_name,
                        wanted.size() > first_wanted.back()});
    }
  }
  PlacedTensors placed = place_tensors(std::move(wanted), plan.recipe.max_shard_bytes);
  plan.shards = std::move(placed.shards);
  for (const OutputShard& shard : plan.shards) {
    plan.output_bytes += shard.size_bytes();
  }
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    TensorWork& work = plan.tensors[index];
    const ModelTensor& tensor = plan.architecture.tensors[work.tensor];
    for (std::size_t part = 0; part < work.parts.size(); ++part) {
      const PlaceInShard& found = placed.places[first_wanted[index] + part];
      OutputPlace& place = work.parts[part];
      place.shard = found.shard;
      place.file_offset = found.file_offset;
      place.size_bytes = found.size_bytes;
      if (stays_stacked(plan, work)) {
        place.size_bytes /= plan.architecture.weights[tensor.stored].entry.shape[0];
        place.file_offset += *tensor.slice * place.size_bytes;
      }
      const std::uint64_t rows = place.rows_before(work.rows) * place.stretches;
      place.row_bytes = rows == 0 ? 0 : place.size_bytes / rows;
    }
  }
}

}  // namespace quantmill
