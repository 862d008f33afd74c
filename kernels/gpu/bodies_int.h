#pragma once

// Private to kernels/gpu: INT4 and INT8 in groups (int4.h), and their packing (int4_pack.h).

#include "kernels/gpu/body.h"
#include "kernels/int4.h"
#include "kernels/int4_pack.h"
#include "kernels/int_group_scale.h"
#include "kernels/lane_sums.h"

namespace quantmill::gpu {

QUANTMILL_BODY float limited(float value, float smallest, float largest) {
  return value < smallest ? smallest : largest < value ? largest : value;
}

struct IntRangeBody {  // a group each
  const float* values;
  Index group;  // columns; groups follow each other, rows too
  float* low;
  float* high;

  QUANTMILL_BODY void operator()(Index index) const {
    const float* const x = values + index * group;
    float least = 0;
    float most = 0;
    for (Index c = 0; c < group; ++c) {
      least = x[c] < least ? x[c] : least;
      most = most < x[c] ? x[c] : most;
    }
    low[index] = least;
    high[index] = most;
  }
};

struct IntScaleBody {  // a group each
  IntSpec spec;
  const float* low;
  const float* high;
  float clip;
  float* scales;
  std::int8_t* zero_points;  // or null

  QUANTMILL_BODY void operator()(Index index) const {
    const IntGroupScale found = int_group_scale(spec, low[index] * clip, high[index] * clip);
    scales[index] = found.scale;
    if (zero_points != nullptr) {
      zero_points[index] = found.zero_point;
    }
  }
};

constexpr Index kNumClips = kIntTriedClips.size();

// By name: a device has no copy of a constant array.
QUANTMILL_BODY float tried_clip(Index index) {
  constexpr std::array<float, kNumClips> kClips = kIntTriedClips;
  return kClips[index];
}

struct IntErrorBody {  // a group and a clip each
  IntSpec spec;
  const float* values;
  Index group;
  Index row_groups;
  const float* importance;  // [row_groups * group], or null: 1
  const float* low;
  const float* high;
  float* errors;  // [groups, kNumClips]

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index index = thread / kNumClips;
    const float clip = tried_clip(thread % kNumClips);
    const IntGroupScale tried = int_group_scale(spec, low[index] * clip, high[index] * clip);
    const auto smallest = static_cast<float>(int_smallest(spec.bits));
    const auto largest = static_cast<float>(int_largest(spec.bits));
    const auto zero = static_cast<float>(tried.zero_point);
    const float* const x = values + index * group;
    const float* const weights =
        importance == nullptr ? nullptr : importance + index % row_groups * group;
    std::array<float, kSumLanes> lanes{};
    for (Index first = 0; first < group; first += kSumLanes) {
      for (Index j = 0; j < kSumLanes; ++j) {
        const Index c = first + j;
        if (c < group) {
          const float code = limited(to_nearest(x[c] / tried.scale) + zero, smallest, largest);
          const float error =
              ((code - zero) * tried.scale - x[c]) * (weights == nullptr ? 1.0F : weights[c]);
          lanes[j] += error * error;
        }
      }
    }
    errors[thread] = add_lanes(lanes);
  }
};

struct IntPickBody {  // a group each
  IntSpec spec;
  const float* low;
  const float* high;
  const float* errors;
  float* scales;
  std::int8_t* zero_points;  // or null

  QUANTMILL_BODY void operator()(Index index) const {
    Index best = 0;
    for (Index i = 1; i < kNumClips; ++i) {
      if (errors[index * kNumClips + i] < errors[index * kNumClips + best]) {
        best = i;
      }
    }
    const float clip = tried_clip(best);
    const IntGroupScale found = int_group_scale(spec, low[index] * clip, high[index] * clip);
    scales[index] = found.scale;
    if (zero_points != nullptr) {
      zero_points[index] = found.zero_point;
    }
  }
};

struct IntQuantizeBody {  // an element each
  const float* values;
  const float* scales;
  const std::int8_t* zero_points;  // or null: 0
  Index group;
  float smallest;
  float largest;
  std::int8_t* codes;

  QUANTMILL_BODY void operator()(Index i) const {
    const Index index = i / group;
    const auto zero = static_cast<float>(zero_points == nullptr ? 0 : zero_points[index]);
    const float code = to_nearest(values[i] / scales[index]) + zero;
    codes[i] = static_cast<std::int8_t>(limited(code, smallest, largest));
  }
};

struct IntDequantizeBody {  // an element each
  const std::int8_t* codes;
  const float* scales;
  const std::int8_t* zero_points;      // or null: 0
  const std::uint32_t* column_groups;  // or null: columns side by side
  Index cols;
  Index row_groups;
  Index width;  // columns of a group
  float* values;
  Index* nonfinite;

  QUANTMILL_BODY void operator()(Index i) const {
    const Index row = i / cols;
    const Index col = i - row * cols;
    const Index group =
        row * row_groups + (column_groups == nullptr ? col / width : column_groups[col]);
    const int zero = zero_points == nullptr ? 0 : zero_points[group];
    const float value = static_cast<float>(codes[i] - zero) * scales[group];
    values[i] = value;
    if (!is_finite(value)) {
      lower_to(nonfinite, i);
    }
  }
};

// A field of a word: which column of the word's it holds, and what it holds for a code.
struct IntFields {
  Index bits;
  bool is_awq;
  bool is_offset;

  [[nodiscard]] QUANTMILL_BODY Index count() const { return 32 / bits; }

  [[nodiscard]] QUANTMILL_BODY Index column_of(Index field) const {
    return !is_awq ? field : field < 4 ? 2 * field : 2 * field - 7;
  }

  [[nodiscard]] QUANTMILL_BODY std::uint32_t pack(std::int8_t code, Index field) const {
    const std::uint32_t offset = is_offset ? 1U << (bits - 1) : 0U;
    const std::uint32_t mask = (1U << bits) - 1U;
    return ((static_cast<std::uint32_t>(static_cast<std::int32_t>(code)) + offset) & mask)
           << (field * bits);
  }

  [[nodiscard]] QUANTMILL_BODY std::int8_t unpack(std::uint32_t word, Index field) const {
    const int half = 1 << (bits - 1);
    const auto value = static_cast<int>((word >> (field * bits)) & ((1U << bits) - 1U));
    const int shifted = is_offset ? value - half : value < half ? value : value - 2 * half;
    return static_cast<std::int8_t>(shifted);
  }
};

struct IntPackColumnsBody {  // a word each
  IntFields fields;
  const std::int8_t* codes;
  Index cols;
  Index row_words;
  std::uint32_t* words;

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index row = thread / row_words;
    const Index first = thread % row_words * fields.count();
    std::uint32_t word = 0;
    for (Index i = 0; i < fields.count(); ++i) {
      const Index c = first + fields.column_of(i);
      word |= c < cols ? fields.pack(codes[row * cols + c], i) : 0U;
    }
    words[thread] = word;
  }
};

struct IntUnpackColumnsBody {  // a word each
  IntFields fields;
  const std::uint32_t* words;
  Index cols;
  Index row_words;
  std::int8_t* codes;

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index row = thread / row_words;
    const Index first = thread % row_words * fields.count();
    const std::uint32_t word = words[thread];
    for (Index i = 0; i < fields.count(); ++i) {
      const Index c = first + fields.column_of(i);
      if (c < cols) {
        codes[row * cols + c] = fields.unpack(word, i);
      }
    }
  }
};

struct IntPackRowsBody {  // a word each: some rows of a column
  IntFields fields;
  const std::int8_t* codes;
  Index rows;
  Index cols;
  std::uint32_t* words;

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index first = thread / cols * fields.count();
    const Index col = thread % cols;
    std::uint32_t word = 0;
    for (Index i = 0; i < fields.count() && first + i < rows; ++i) {
      word |= fields.pack(codes[(first + i) * cols + col], i);
    }
    words[thread] = word;
  }
};

struct IntUnpackRowsBody {  // a word each
  IntFields fields;
  const std::uint32_t* words;
  Index rows;
  Index cols;
  std::int8_t* codes;

  QUANTMILL_BODY void operator()(Index thread) const {
    const Index first = thread / cols * fields.count();
    const Index col = thread % cols;
    const std::uint32_t word = words[thread];
    for (Index i = 0; i < fields.count() && first + i < rows; ++i) {
      codes[(first + i) * cols + col] = fields.unpack(word, i);
    }
  }
};

}  // namespace quantmill::gpu
