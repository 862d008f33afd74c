#pragma once

// Scales of the key-value cache: one of keys and one of values for each layer with attention.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "stats/statistics.h"

namespace quantmill {

// Whether a recorded input is of keys or values as they go into the cache: keys after rotary
// embedding and norm. Its channels are those of all key-value heads, and each tensor-parallel rank
// has its own.
bool is_cache_record(std::string_view name);

// Adds the works, and plan.kv_scales, for every layer of the model's own with a linear "o_proj",
// none in parts that are quantized on request. statistics: null in a
// plan without a search. Errors, kUsage: a model without such layers; kInput: a layer without
// maxima in the statistics (named).
void add_kv_scales(const Statistics* statistics, Plan& plan);

// The recorded largest |x| of every channel; nothing without one.
std::optional<std::vector<double>> cache_maxima(const Statistics& statistics,
                                                const ResolvedArchitecture& architecture,
                                                const std::string& maxima);

// How it is stored.
StoredPart kv_scale_part(Layout layout, const std::string& name);

}  // namespace quantmill
