// The cpu backend's kernels as the compiler makes them for every machine of the architecture.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/codec.h"
#include "kernels/cpu/entries.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"

#include "kernels/cpu/body_entries.h"

namespace quantmill::cpu {

constinit const Entries kPlainEntries = make_entries<4>();

}  // namespace quantmill::cpu
