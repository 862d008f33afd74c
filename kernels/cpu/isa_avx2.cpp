// The cpu backend's kernels for AVX2.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <immintrin.h>

#include "kernels/codec.h"
#include "kernels/cpu/entries.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"

// From here on, functions are for this instruction set. What other files also use was included
// before: its functions must stay for any machine. The attribute on functions alone is not enough:
// GCC 12 takes vectors apart before it inlines.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#include "kernels/cpu/lanes_avx2.h"  // before the bodies: they use its specializations

#include "kernels/cpu/body_entries.h"

namespace quantmill::cpu {

constinit const Entries kAvx2Entries = make_entries<8>();

}  // namespace quantmill::cpu

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
