#pragma once

// NCCL for the exchange of parts (exchange.h), which decides when it is used: gathers bytes between
// GPUs, never sums them. The only module that knows it.
//
// The library is opened while the program runs (dlopen), not linked: one program then serves login
// nodes, CPU partitions and machines with GPUs, and where libnccl.so.2 is missing parts go over MPI
// instead of the program not starting. A build without nccl.h has the same symbols; nccl_trouble()
// then says so.

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "comm/mpi.h"

namespace quantmill {

// The GPU that a rank computes on.
struct DeviceIdentity {
  int ordinal = 0;   // as the CUDA runtime counts in this process
  std::string uuid;  // of the piece of hardware, not empty: equal on ranks that share it
};

// After this long without an end an operation has failed: a rank died, or the network is stuck.
inline constexpr std::chrono::milliseconds kNcclTimeout{300'000};

// Why NCCL can't be used in this process, in a few words ("built without NCCL"); empty: it can be.
// Looks for the library at the first call.
std::string nccl_trouble();

// Of the library that was found, as NCCL counts: 22809 is 2.28.9. 0 without one.
int nccl_version();

// A communicator of NCCL over all ranks of a Communicator, each with a GPU of its own, and what it
// needs on this rank's: a stream and memory for pieces. It never blocks for good: every operation
// is polled against the time-out. Its calls set the calling thread's CUDA device.
class NcclCommunicator {
 public:
  // Collective over `world`; needs an empty nccl_trouble() and different GPUs. Errors: kDevice or
  // kComm, on all ranks alike, if there is no stream or no unique id; kComm, not agreed, if NCCL
  // fails or a rank does not come in time: the job must then be aborted.
  NcclCommunicator(const Communicator& world,
                   const DeviceIdentity& device,
                   std::chrono::milliseconds timeout = kNcclTimeout);

  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  NcclCommunicator(NcclCommunicator&& other) noexcept;
  NcclCommunicator& operator=(NcclCommunicator&& other) noexcept;
  // Collective, and before MPI is finalized. After an error, and while one is in flight, it waits
  // for no other rank.
  ~NcclCommunicator();

  // Device memory for pieces of this size. Not collective. Errors: kDevice: there is not enough.
  void reserve(std::size_t piece_bytes);

  // A GatherPiece: no piece longer than what was reserved. Collective. Errors: kComm, kDevice, not
  // agreed: NCCL's communicator is aborted by then, and so must be the job.
  void gather(std::span<const std::byte> mine, std::span<const std::span<std::byte>> to);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quantmill
