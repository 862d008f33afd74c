#pragma once

// Private to kernels/gpu: where a kernel that is called in pieces first meets NaN or infinity.

#include <optional>
#include <span>

#include "kernels/gpu/call.h"
#include "kernels/matrix.h"

namespace quantmill::gpu {

class FirstNonfinite {
 public:
  // For lower_to of one piece's bodies.
  Index* begin(Call& call) {
    found_ = kNowhere;
    return call.change(std::span(&found_, 1));
  }

  // After the piece's finish(). `offset`: of its first element.
  void end(std::size_t offset) {
    if (!first_ && found_ != kNowhere) {
      first_ = offset + found_;
    }
  }

  [[nodiscard]] std::optional<MatrixPosition> position(std::size_t cols) const {
    if (!first_) {
      return std::nullopt;
    }
    return MatrixPosition{*first_ / cols, *first_ % cols};
  }

 private:
  Index found_ = kNowhere;
  std::optional<std::size_t> first_;
};

}  // namespace quantmill::gpu
