#pragma once

// Private to kernels/gpu: rounding with error feedback (gptq.h), some columns at a time. Within
// such a panel a thread rounds its row; then all later columns take the panel's losses at once.
// Each column meets the losses before it in their order, as the reference's loop has it.

#include "kernels/gpu/body.h"
#include "kernels/rounding_grid.h"

namespace quantmill::gpu {

// Columns rounded between two updates of the others: a panel's losses and factors stay in a
// device's caches.
constexpr Index kPanel = 32;

struct GptqGatherBody {  // a value each; neighbours are rows
  const float* values;   // [rows, cols]
  const std::uint32_t* order;
  Index rows;
  Index cols;
  float* work;  // [cols, rows], in the order of rounding

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index place = thread / rows;
    const Index row = thread % rows;
    work[thread] = values[row * cols + order[place]];
  }
};

struct GptqPanelBody {  // a row each
  RoundingGrid grid;
  const float* work;
  const std::uint32_t* order;
  const float* factors;            // [cols - begin, kPanel], of places from `begin` on
  const float* scales;             // [rows, groups]
  const std::int8_t* zero_points;  // or null: 0
  Index rows;
  Index cols;
  Index groups;
  Index begin;
  Index end;
  float* losses;   // [kPanel, rows]
  float* rounded;  // [rows, cols]

  QUANTMILL_BODY void operator()(Index row) const {
    const Index of_group = cols / groups;
    for (Index place = begin; place < end; ++place) {
      float x = work[place * rows + row];
      for (Index before = begin; before < place; ++before) {
        x -= losses[(before - begin) * rows + row] *
             factors[(place - begin) * kPanel + (before - begin)];
      }
      const Index column = order[place];
      const Index group = row * groups + column / of_group;
      const int zero = zero_points == nullptr ? 0 : zero_points[group];
      const float value = round_to_grid(grid, x, scales[group], zero);
      rounded[row * cols + column] = value;
      losses[(place - begin) * rows + row] = x - value;
    }
  }
};

struct GptqUpdateBody {  // a value of the later columns each; neighbours are rows
  float* work;
  const float* factors;
  const float* losses;
  Index rows;
  Index begin;
  Index end;

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index place = end + thread / rows;
    const Index row = thread % rows;
    float x = work[place * rows + row];
    for (Index before = begin; before < end; ++before) {
      x -= losses[(before - begin) * rows + row] *
           factors[(place - begin) * kPanel + (before - begin)];
    }
    work[place * rows + row] = x;
  }
};

}  // namespace quantmill::gpu
