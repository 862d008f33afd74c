#include "pipeline/tied_embeddings.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

}  // namespace

void check_tied(const Checkpoint& checkpoint, const Plan& plan) {
  if (!plan.architecture.tied || plan.recipe.untie) {
    return;
  }
  const auto stored = [&](std::size_t tensor) -> const SourceTensor& {
    const std::size_t weight = plan.architecture.tensors[tensor].stored;
    return checkpoint.tensors()[plan.architecture.weights[weight].codes];
  };
  const SourceTensor& kept = stored(plan.architecture.tied->kept);
  const SourceTensor& dropped = stored(plan.architecture.tied->dropped);
  std::vector<std::byte> a;
  std::vector<std::byte> b;
  for (std::uint64_t begin = 0; begin < kept.entry.size_bytes(); begin += kPieceBytes) {
    a.resize(std::min(kPieceBytes, kept.entry.size_bytes() - begin));
    b.resize(a.size());
    checkpoint.read(kept, begin, a);
    checkpoint.read(dropped, begin, b);
    const auto [left, right] = std::ranges::mismatch(a, b);
    if (left != a.end()) {
      throw Error(
          ErrorCode::kInput,
          fmt::format("config.json says that the embeddings are tied, but {} and {} differ from "
                      "byte {}; readers would use only one of them. If they are meant to be two, "
                      "--untie keeps both and says so in the output's config.json",
                      kept.entry.name,
                      dropped.entry.name,
                      begin + static_cast<std::uint64_t>(left - a.begin())));
    }
  }
}

}  // namespace quantmill
