#include "device/context.h"

#include <cstdlib>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {
namespace {

// The instruction set that QUANTMILL_FORCE_ISA names, checked against this machine.
Isa forced_isa(std::string_view name) {
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
    if (name != isa_name(isa)) {
      continue;
    }
    if (isa > best_isa()) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("QUANTMILL_FORCE_ISA is \"{}\", but this machine runs {} at best; unset it, "
                      "or set it to that",
                      name,
                      isa_name(best_isa())));
    }
    return isa;
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("QUANTMILL_FORCE_ISA is \"{}\"; it can be plain, avx2 or avx512", name));
}

}  // namespace

std::string_view backend_name(Backend backend) {
  switch (backend) {
    case Backend::kReference:
      return "reference";
    case Backend::kCpu:
      return "cpu";
  }
  return "unknown";
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return "plain";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Isa best_isa() {
  const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  const bool avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  if (avx2 && avx512) {
    return Isa::kAvx512;
  }
  return avx2 ? Isa::kAvx2 : Isa::kPlain;
}

Context make_context(std::string_view name) {
  if (name == "reference") {
    return {Backend::kReference, Isa::kPlain};
  }
  if (name != "auto" && name != "cpu") {
    throw Error(ErrorCode::kUsage,
                fmt::format("unknown backend \"{}\"; it can be auto, reference or cpu", name));
  }
  const char* forced = std::getenv("QUANTMILL_FORCE_ISA");
  return {Backend::kCpu, forced == nullptr ? best_isa() : forced_isa(forced)};
}

}  // namespace quantmill
