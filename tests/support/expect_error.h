#pragma once

// The Error that a call throws, so that a test can look at its code and message.

#include "base/error.h"

namespace quantmill::test {

template <typename Body>
Error error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

}  // namespace quantmill::test
