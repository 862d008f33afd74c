#include "comm/nccl_library.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace quantmill {
namespace {

constexpr const char* kName = "libnccl.so.2";

void* open_library() {
  // Where the dynamic linker looks first, so that a site's own NCCL wins; then where the build
  // found one.
  for (const char* name : {kName, QUANTMILL_NCCL_LIBRARY}) {
    if (*name != '\0') {
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
        return library;
      }
    }
  }
  return nullptr;
}

NcclLibrary load() {
  NcclLibrary found;
  void* library = open_library();
  if (library == nullptr) {
    found.trouble = fmt::format("{} is not there", kName);
    return found;
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && found.trouble.empty()) {
      found.trouble = fmt::format("{} is too old: it lacks {}", kName, name);
    }
  };
  find(found.get_version, "ncclGetVersion");
  find(found.get_unique_id, "ncclGetUniqueId");
  find(found.comm_init_rank_config, "ncclCommInitRankConfig");
  find(found.comm_get_async_error, "ncclCommGetAsyncError");
  find(found.comm_finalize, "ncclCommFinalize");
  find(found.comm_destroy, "ncclCommDestroy");
  find(found.comm_abort, "ncclCommAbort");
  find(found.all_gather, "ncclAllGather");
  find(found.get_error_string, "ncclGetErrorString");
  find(found.get_last_error, "ncclGetLastError");
  return found;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

}  // namespace quantmill
