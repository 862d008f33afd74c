#pragma once

// Where kernels run: chosen once per job and passed to every kernel.

#include <optional>
#include <string_view>

namespace quantmill {

enum class Backend { kReference, kCpu };

// Instruction sets of the cpu backend, in rising order. kPlain is what the compiler makes without
// any.
enum class Isa { kPlain, kAvx2, kAvx512 };

struct Context {
  Backend backend = Backend::kCpu;
  Isa isa = Isa::kPlain;
};

std::string_view backend_name(Backend backend);
std::string_view isa_name(Isa isa);

// The best instruction set that this machine runs.
Isa best_isa();

// `name` is auto, reference or cpu. The environment variable QUANTMILL_FORCE_ISA (plain, avx2,
// avx512) overrides the choice of the cpu backend. Errors, kUsage: an unknown name, or an
// instruction set that this machine lacks.
Context make_context(std::string_view name);

}  // namespace quantmill
