#pragma once

// A GPU knows operations, not tensors: whoever works on one adds its name to what fails.

#include <string>

#include "base/error.h"

namespace quantmill {

// What body() returns. An Error of kDevice is thrown again with the tensor's name.
template <typename Body>
auto with_tensor_name(const std::string& tensor, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDevice) {
      throw;
    }
    throw Error(error.code(), "tensor " + tensor + ": " + error.message());
  }
}

}  // namespace quantmill
