#pragma once

// Private to kernels/: hands a call whose shapes have been checked over to the backend that the
// context names.

#include "base/error.h"
#include "device/context.h"

namespace quantmill {

// The three implementations take the same arguments, after what they need to know of where they
// run.
template <typename Reference, typename Cpu, typename OnGpu, typename... Arguments>
auto on_backend(
    const Context& context, Reference* reference, Cpu* cpu, OnGpu* gpu, Arguments&&... arguments) {
  switch (context.backend) {
    case Backend::kReference:
      return reference(arguments...);
    case Backend::kCpu:
      return cpu(context.isa, arguments...);
    case Backend::kGpu:
      return gpu(context, arguments...);
  }
  throw Error(ErrorCode::kInternal, "an unknown backend");
}

}  // namespace quantmill
