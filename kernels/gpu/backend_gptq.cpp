// Rounding with error feedback on a GPU.

#include <algorithm>
#include <vector>

#include "kernels/backends.h"
#include "kernels/gpu/call.h"

namespace quantmill::gpu {
namespace {

// The factors of a panel's columns in all places from its first on: [cols - begin, kPanel].
void gather_panel(const ErrorFeedback& feedback,
                  std::size_t cols,
                  std::size_t begin,
                  std::size_t end,
                  std::vector<float>& panel) {
  panel.assign((cols - begin) * kPanel, 0.0F);
  for (std::size_t place = begin; place < cols; ++place) {
    const std::size_t last = std::min(place, end);
    std::copy(feedback.factors.begin() + static_cast<std::ptrdiff_t>(place * cols + begin),
              feedback.factors.begin() + static_cast<std::ptrdiff_t>(place * cols + last),
              panel.begin() + static_cast<std::ptrdiff_t>((place - begin) * kPanel));
  }
}

}  // namespace

void gptq_round(const Context& context,
                const RoundingGrid& grid,
                const ErrorFeedback& feedback,
                ConstFloatMatrix values,
                ConstFloatMatrix scales,
                std::span<const std::int8_t> zero_points,
                FloatMatrix rounded) {
  const std::size_t cols = values.cols;
  const std::size_t value_bytes = lane_bytes_each(context, values.data) +
                                  lane_bytes_each(context, rounded.data) + sizeof(float);
  in_pieces(
      context,
      values.rows,
      {cols * value_bytes + scales.cols * (sizeof(float) + 1) + kPanel * sizeof(float),
       cols * (kPanel * sizeof(float) + sizeof(std::uint32_t)),
       cols},
      [&](std::size_t first, std::size_t count) {
        Call call(context, "rounding with feedback");
        const auto rows = static_cast<Index>(count);
        const auto num_cols = static_cast<Index>(cols);
        const std::uint32_t* const order = call.in(std::span(feedback.order));
        auto* const work = call.scratch<float>(cols * count);
        call.launch(
            GptqGatherBody{call.in(rows_of(values, first, count)), order, rows, num_cols, work},
            cols * count);
        const float* const of_groups = call.in(rows_of(scales, first, count));
        const std::int8_t* const zeros =
            call.in(rows_if_any(zero_points, scales.cols, first, count));
        auto* const losses = call.scratch<float>(kPanel * count);
        float* const to = call.out(rows_of(rounded, first, count));
        auto* const factors = call.scratch<float>(cols * kPanel);
        std::vector<float> panel;
        for (std::size_t begin = 0; begin < cols; begin += kPanel) {
          const std::size_t end = std::min(begin + kPanel, cols);
          gather_panel(feedback, cols, begin, end, panel);
          call.upload(factors, std::span<const float>(panel));
          call.launch(GptqPanelBody{grid,
                                    work,
                                    order,
                                    factors,
                                    of_groups,
                                    zeros,
                                    rows,
                                    num_cols,
                                    static_cast<Index>(scales.cols),
                                    static_cast<Index>(begin),
                                    static_cast<Index>(end),
                                    losses,
                                    to},
                      count);
          call.launch(
              GptqUpdateBody{
                  work, factors, losses, rows, static_cast<Index>(begin), static_cast<Index>(end)},
              (cols - end) * count);
        }
        call.finish();
      });
}

}  // namespace quantmill::gpu
