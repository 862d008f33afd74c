#pragma once

// NCCL's functions, found in libnccl.so.2 while the program runs; nccl.h (comm/) says why. Private
// to src/comm/nccl.cpp; tests put a made-up library in its place.

#include <nccl.h>

#include <string>

namespace quantmill {

struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  std::string trouble;  // why the functions above are not there; empty: all are
};

// Opened at the first call and never closed: NCCL has threads of its own. Thread-safe.
const NcclLibrary& nccl_library();

}  // namespace quantmill
