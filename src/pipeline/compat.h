#pragma once

// What only --compat seed needs: scales given from outside, and the report of the script that it
// reproduces.

#include <filesystem>
#include <string>
#include <vector>

#include "pipeline/manifest.h"
#include "plan/plan.h"
#include "stats/scales.h"

namespace quantmill {

// Scales from a JSON file: {group: {"alpha": number, "s_f32_hex": ["3f800000", …: the bits of each
// float]}}; other keys are passed over. powf and exp differ between libraries in the last bit, so
// the script's own s can't be recomputed. Errors, kInput: not such a file, a group of the plan that
// it lacks or that has another number of channels.
ScaleTable read_compat_scales(const std::filesystem::path& file, const Plan& plan);

// The lines that the script prints.
std::string seed_report(const std::filesystem::path& out,
                        const ScaleTable& scales,
                        const Plan& plan,
                        const std::vector<TensorError>& tensors);

}  // namespace quantmill
