#include "kernels/gpu/call.h"

#include "base/error.h"

namespace quantmill::gpu {
namespace {

// What alignment of a call's parts takes at most.
constexpr std::size_t kSlack = 16 * GpuRegion::kAlignment;

constexpr std::size_t kMostElements = std::size_t{1} << 30;

}  // namespace

Call::~Call() {
  if (!is_finished_) {
    try {  // an error is on its way already; the lane's memory may be in use all the same
      lane_.queue().finish(operation_);
    } catch (const Error&) {
      return;
    }
  }
}

const Entries& Call::entries() const {
  return gpu_.driver().is_emulated() ? emulated_entries() : cuda_entries();
}

void Call::finish() {
  for (const auto& [to, from] : results_) {
    lane_.queue().download(to, from);
  }
  lane_.queue().finish(operation_);
  is_finished_ = true;
}

std::size_t items_of_call(const Context& context, const Footprint& footprint) {
  const std::size_t lane = context.gpu->lane_bytes();
  const std::size_t beside = footprint.other_bytes + kSlack;
  const std::size_t left = lane > beside ? lane - beside : 0;
  const std::size_t fitting =
      std::min(left / std::max<std::size_t>(1, footprint.item_bytes),
               kMostElements / std::max<std::size_t>(1, footprint.item_elements));
  return std::max<std::size_t>(1, fitting / footprint.together) * footprint.together;
}

}  // namespace quantmill::gpu
