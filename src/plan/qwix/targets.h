#pragma once

// Where the rows and columns of one work go in a parameter's tensors. Private to layout qwix.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/plan.h"
#include "plan/qwix/jax_parameters.h"

namespace quantmill {

// Where a tensor begins.
struct TensorPlace {
  std::size_t shard = 0;
  std::uint64_t file_offset = 0;
  DType dtype = DType::kU8;
};

// Outputs and inputs of a linear that share a scale in a parameter.
struct ScaleBlocks {
  std::uint64_t rows = 1;
  std::uint64_t cols = 1;
  bool is_whole = false;  // all inputs do
};

struct ParameterPlaces {
  TensorPlace values;
  std::optional<TensorPlace> scales;
  std::optional<TensorPlace> zero_points;
  ScaleBlocks blocks;
};

// The largest blocks that repeat every scale exactly: one output and as many inputs as share a
// scale in all sources; in an opaque parameter a square, where the codes have blocks of rows.
// `works` are those of each weight. kInput: a stated block that does not fit.
ScaleBlocks choose_blocks(const Checkpoint& checkpoint,
                          const Plan& plan,
                          const std::vector<std::vector<std::size_t>>& works,
                          const JaxParameter& parameter);

// Of the scales of a quantized parameter, one of whose sources is of `work`. kInput: inputs or
// outputs that are split into several axes where a scale is not for all of them.
std::vector<std::uint64_t> scale_shape(const Plan& plan,
                                       const TensorWork& work,
                                       const JaxParameter& parameter,
                                       const ScaleBlocks& blocks);

// Adds a target to a work of one of the parameter's sources. kInput: a part that can't be taken
// from a weight as it is stored.
void add_target(const Plan& plan,
                const JaxParameter& parameter,
                const ParameterSource& source,
                const ParameterPlaces& places,
                TensorWork& work);

// Once a work has all its targets: sets its parts, and does without targets where its bytes go
// one after the other. kInput: a part of it that nothing takes.
void finish_targets(const Plan& plan, TensorWork& work);

}  // namespace quantmill
