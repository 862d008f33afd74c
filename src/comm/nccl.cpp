#include "comm/nccl.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/handle.h"
#include "comm/nccl_library.h"

namespace quantmill {
namespace {

constexpr std::chrono::microseconds kPollInterval{50};
constexpr std::chrono::seconds kAbortTimeout{10};
// Slots of ranks in device memory start at multiples of this: NCCL is fastest so.
constexpr std::size_t kSlotAlignment = 512;

std::size_t slot_size(std::size_t piece_bytes) {
  return (piece_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

struct CommTraits {
  using Handle = ncclComm_t;

  static Handle null() noexcept { return nullptr; }

  // Local, as opposed to finalizing, but it has been seen to wait for ranks that are gone (NCCL's
  // issues 829 and 863): then it is left behind, since the process is about to end.
  static void close(Handle handle) noexcept {
    try {
      std::promise<void> promise;
      const std::future<void> done = promise.get_future();
      std::thread([handle, promise = std::move(promise)]() mutable {
        nccl_library().comm_abort(handle);
        promise.set_value();
      }).detach();
      done.wait_for(kAbortTimeout);
    } catch (const std::exception&) {  // no thread to be had: leave it to the end of the process
    }
  }
};

struct StreamTraits {
  using Handle = cudaStream_t;

  static Handle null() noexcept { return nullptr; }

  static void close(Handle handle) noexcept { cudaStreamDestroy(handle); }
};

struct DeviceMemoryTraits {
  using Handle = void*;

  static Handle null() noexcept { return nullptr; }

  static void close(Handle handle) noexcept { cudaFree(handle); }
};

// Asks until the answer is yes. False: time is up.
template <typename IsDone>
bool poll(std::chrono::milliseconds timeout, const IsDone& is_done) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!is_done()) {
    if (std::chrono::steady_clock::now() >= end) {
      return false;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

[[noreturn]] void fail(std::string_view operation, std::string_view what) {
  throw Error(
      ErrorCode::kComm,
      fmt::format("NCCL: {} {}; NCCL_DEBUG=INFO in the environment says more, --backend cpu "
                  "does without NCCL",
                  operation,
                  what));
}

[[noreturn]] void fail(std::string_view operation, ncclResult_t result, ncclComm_t comm) {
  const NcclLibrary& nccl = nccl_library();
  const char* last = nccl.get_last_error(comm);
  std::string what = fmt::format("failed: {}", nccl.get_error_string(result));
  if (last != nullptr && *last != '\0') {
    what += fmt::format(" ({})", last);
  }
  fail(operation, what);
}

}  // namespace

std::string nccl_trouble() {
  return nccl_library().trouble;
}

int nccl_version() {
  int version = 0;
  const NcclLibrary& nccl = nccl_library();
  if (nccl.trouble.empty() && nccl.get_version(&version) != ncclSuccess) {
    version = 0;
  }
  return version;
}

struct NcclCommunicator::State {
  const NcclLibrary& nccl = nccl_library();
  int ordinal = 0;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = kNcclTimeout;
  std::size_t piece_bytes = 0;  // that memory has slots for
  UniqueHandle<DeviceMemoryTraits> memory;
  UniqueHandle<StreamTraits> stream;
  UniqueHandle<CommTraits> comm;  // the last, so that it ends before what it works on

  State(const Communicator& world, const DeviceIdentity& device, std::chrono::milliseconds longest)
      : ordinal(device.ordinal), rank(world.rank()), size(world.size()), timeout(longest) {}

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  ~State() {
    if (!comm.has_value() || std::uncaught_exceptions() > 0) {
      return;  // while something else failed, members abort and wait for nobody
    }
    try {
      complete(nccl.comm_finalize(comm.get()), "ncclCommFinalize");
      nccl.comm_destroy(comm.release());
    } catch (const std::exception&) {
      abandon();  // every gather was complete, so nothing is lost
    }
  }

  void check_cuda(cudaError_t result, std::string_view call) const {
    if (result != cudaSuccess) {
      throw Error(ErrorCode::kDevice,
                  fmt::format("GPU {}: {} failed: {}; --backend cpu does without",
                              ordinal,
                              call,
                              cudaGetErrorString(result)));
    }
  }

  void make_stream() {
    check_cuda(cudaSetDevice(ordinal), "cudaSetDevice");
    cudaStream_t made = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate");
    stream.reset(made);
  }

  // Collective in NCCL's sense: returns when all ranks have come.
  void join(const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    const ncclResult_t result = nccl.comm_init_rank_config(&made, size, id, rank, &config);
    comm.reset(made);
    complete(result, "ncclCommInitRankConfig");
  }

  // What NCCL says of the operation that is under way.
  [[nodiscard]] ncclResult_t progress() const {
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = nccl.comm_get_async_error(comm.get(), &state);
    return asked == ncclSuccess ? state : asked;
  }

  // Waits until what a call of a non-blocking communicator began is in the stream, or done.
  void complete(ncclResult_t result, std::string_view operation) const {
    const bool in_time = poll(timeout, [&] {
      if (result == ncclInProgress) {
        result = progress();
      }
      return result != ncclInProgress;
    });
    check_in_time(in_time, operation);
    if (result != ncclSuccess) {
      fail(operation, result, comm.get());
    }
  }

  // Waits for all that is in the stream. cudaStreamSynchronize would wait for a dead rank for ever.
  void wait_for_stream(std::string_view operation) const {
    cudaError_t status = cudaErrorNotReady;
    ncclResult_t result = ncclSuccess;
    const bool in_time = poll(timeout, [&] {
      status = cudaStreamQuery(stream.get());
      result = progress();
      return status != cudaErrorNotReady || (result != ncclSuccess && result != ncclInProgress);
    });
    check_in_time(in_time, operation);
    if (result != ncclSuccess) {
      fail(operation, result, comm.get());
    }
    check_cuda(status, operation);
  }

  void check_in_time(bool in_time, std::string_view operation) const {
    if (!in_time) {
      fail(
          operation,
          fmt::format("was not finished after {} s: a rank ended early, or ranks do not reach each "
                      "other",
                      static_cast<double>(timeout.count()) / 1000));
    }
  }

  void gather(std::span<const std::byte> mine, std::span<const std::span<std::byte>> to) const {
    std::size_t longest = 0;
    for (const std::span<std::byte> piece : to) {
      longest = std::max(longest, piece.size());
    }
    const auto own = static_cast<std::size_t>(rank);
    check_invariant(to.size() == static_cast<std::size_t>(size) && to[own].size() == mine.size() &&
                        longest <= piece_bytes,
                    "NCCL: pieces are not those that were announced");
    if (longest == 0) {
      return;  // on all ranks
    }
    const std::size_t slot_bytes = slot_size(longest);
    auto* slots = static_cast<std::byte*>(memory.get());
    std::byte* slot = slots + own * slot_bytes;
    check_cuda(cudaSetDevice(ordinal), "cudaSetDevice");
    if (!mine.empty()) {
      check_cuda(
          cudaMemcpyAsync(slot, mine.data(), mine.size(), cudaMemcpyHostToDevice, stream.get()),
          "copying to it");
    }
    // So that no rank is sent what happened to lie in memory.
    check_cuda(cudaMemsetAsync(slot + mine.size(), 0, slot_bytes - mine.size(), stream.get()),
               "cudaMemset");
    complete(nccl.all_gather(slot, slots, slot_bytes, ncclUint8, comm.get(), stream.get()),
             "ncclAllGather");
    // Before copies to pageable memory, which wait for the stream without a time-out.
    wait_for_stream("ncclAllGather");
    for (std::size_t from = 0; from < to.size(); ++from) {
      if (!to[from].empty()) {
        check_cuda(cudaMemcpyAsync(to[from].data(),
                                   slots + from * slot_bytes,
                                   to[from].size(),
                                   cudaMemcpyDeviceToHost,
                                   stream.get()),
                   "copying from it");
      }
    }
    wait_for_stream("copying from the GPU");
  }

  // Ends NCCL on this rank without the others. Memory and stream are left to the end of the
  // process: to free them would wait for a kernel that may still be waiting for a dead rank.
  void abandon() noexcept {
    comm.reset();
    static_cast<void>(memory.release());
    static_cast<void>(stream.release());
  }
};

NcclCommunicator::NcclCommunicator(const Communicator& world,
                                   const DeviceIdentity& device,
                                   std::chrono::milliseconds timeout)
    : state_(std::make_unique<State>(world, device, timeout)) {
  ncclUniqueId id{};
  std::vector<std::byte> bytes(sizeof id);
  world.collectively([&] {
    if (!state_->nccl.trouble.empty()) {
      throw Error(ErrorCode::kComm, state_->nccl.trouble);
    }
    state_->make_stream();
    if (state_->rank == 0) {
      const ncclResult_t result = state_->nccl.get_unique_id(&id);
      if (result != ncclSuccess) {
        fail("ncclGetUniqueId", result, nullptr);
      }
      copy_bytes(bytes.data(), &id, sizeof id);
    }
  });
  bytes = world.broadcast(std::move(bytes), 0);
  copy_bytes(&id, bytes.data(), sizeof id);
  try {
    state_->join(id);
  } catch (const std::exception&) {
    state_->abandon();
    throw;
  }
}

NcclCommunicator::NcclCommunicator(NcclCommunicator&&) noexcept = default;
NcclCommunicator& NcclCommunicator::operator=(NcclCommunicator&&) noexcept = default;
NcclCommunicator::~NcclCommunicator() = default;

void NcclCommunicator::reserve(std::size_t piece_bytes) {
  if (piece_bytes <= state_->piece_bytes) {
    return;
  }
  state_->check_cuda(cudaSetDevice(state_->ordinal), "cudaSetDevice");
  state_->memory.reset();
  state_->piece_bytes = 0;
  const std::size_t size_bytes = static_cast<std::size_t>(state_->size) * slot_size(piece_bytes);
  void* made = nullptr;
  state_->check_cuda(cudaMalloc(&made, size_bytes),
                     fmt::format("reserving {} bytes for statistics", size_bytes));
  state_->memory.reset(made);
  state_->piece_bytes = piece_bytes;
}

void NcclCommunicator::gather(std::span<const std::byte> mine,
                              std::span<const std::span<std::byte>> to) {
  try {
    state_->gather(mine, to);
  } catch (const std::exception&) {
    state_->abandon();
    throw;
  }
}

}  // namespace quantmill
