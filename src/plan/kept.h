#pragma once

// What a plan leaves unquantized, and why: for people who wonder.

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace quantmill {

struct KeptTensor {
  std::string name;  // of the output tensor
  std::string stored_as;
  std::uint64_t size_bytes = 0;
  std::string why;  // "a norm", "--keep *.o_proj" …; the same words for the same reason
};

// In the plan's order; without what is made from statistics alone.
std::vector<KeptTensor> kept_tensors(const Plan& plan);

}  // namespace quantmill
