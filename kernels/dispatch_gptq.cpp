// kernels/gptq.h: checks shapes, then hands over to the backend that the context names.

#include "base/error.h"
#include "kernels/backends.h"
#include "kernels/on_backend.h"

namespace quantmill {

void gptq_round(const Context& context,
                const RoundingGrid& grid,
                const ErrorFeedback& feedback,
                ConstFloatMatrix values,
                ConstFloatMatrix scales,
                std::span<const std::int8_t> zero_points,
                FloatMatrix rounded) {
  check_invariant(rounded.rows == values.rows && rounded.cols == values.cols,
                  "rounded values must have the shape of the values");
  check_invariant(scales.rows == values.rows && scales.cols > 0 && values.cols % scales.cols == 0,
                  "the scales must be [rows, groups of as many columns]");
  check_invariant(zero_points.empty() || zero_points.size() == scales.rows * scales.cols,
                  "there must be one zero point for each scale");
  check_invariant(
      feedback.order.size() == values.cols && feedback.factors.size() == values.cols * values.cols,
      "the feedback is of another number of columns");
  on_backend(context,
             reference::gptq_round,
             cpu::gptq_round,
             gpu::gptq_round,
             grid,
             feedback,
             values,
             scales,
             zero_points,
             rounded);
}

}  // namespace quantmill
