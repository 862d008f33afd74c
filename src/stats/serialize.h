#pragma once

// Statistics as bytes for another rank of the same job. Not a file format.

#include <cstddef>
#include <span>
#include <vector>

#include "stats/statistics.h"

namespace quantmill {

std::vector<std::byte> serialize(const Statistics& statistics);
Statistics deserialize_statistics(std::span<const std::byte> bytes);

}  // namespace quantmill
