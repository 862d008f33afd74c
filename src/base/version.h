#pragma once

// The program's version as `quantmill --version` prints it and manifests record it.

#include <string_view>

namespace quantmill {

std::string_view program_version();

}  // namespace quantmill
