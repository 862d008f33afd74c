#pragma once

// Scales that the user brings (--scales): of an earlier job, or made elsewhere.

#include <filesystem>

#include "plan/plan.h"
#include "stats/scales.h"

namespace quantmill {

// The table for `plan` from a file of read_scales. Groups that can't be folded are neutral, with
// the plan's reason; so are those that are neutral in the file. With FoldScales::kPow2 each s
// becomes the nearest power of two (in log2, ties to the even exponent). Errors, kInput: not such a
// file, a fold group that it lacks or that has another number of channels, one that the model does
// not have, an s that is not finite and above 0.
ScaleTable read_given_scales(const std::filesystem::path& file, const Plan& plan);

}  // namespace quantmill
