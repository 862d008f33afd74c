#include "device/work_buffer.h"

#include <algorithm>

namespace quantmill {
namespace {

constexpr std::size_t kCacheElements = std::size_t{1} << 15;

// Starting kernels and copies takes some 0.1 ms, in which a device works on some million.
constexpr std::size_t kDeviceElements = std::size_t{1} << 22;

}  // namespace

std::size_t work_elements(const Context& context, std::size_t element_bytes, std::size_t buffers) {
  if (context.gpu == nullptr) {
    return kCacheElements;
  }
  // A little less, for alignment.
  const std::size_t fitting = context.gpu->buffer_bytes() / 8 * 7 / (element_bytes * buffers);
  return std::min(kDeviceElements, fitting);
}

}  // namespace quantmill
