#pragma once

// What a finished job tells people: sizes, time, what the scales gained, the worst tensors.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "pipeline/manifest.h"
#include "plan/plan.h"
#include "stats/scales.h"

namespace quantmill {

std::string describe_result(const std::filesystem::path& source,
                            const std::filesystem::path& out,
                            const Plan& plan,
                            const ScaleTable& scales,
                            const std::vector<TensorError>& tensors,
                            double seconds);

// "1.25 GB/s"; GB is 10^9 bytes.
std::string format_rate(std::uint64_t bytes, double seconds);

}  // namespace quantmill
