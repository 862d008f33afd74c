#pragma once

// How the tensor-parallel parts of statistics travel between ranks: over NCCL where every rank has
// a GPU of its own, over MPI otherwise. Bytes only, in rank order: what is made of them is the same
// whatever carried them. Not for the short messages of a job; those are mpi.h's.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi.h"
#include "comm/nccl.h"

namespace quantmill {

// What a rank tells the others before they agree on a transport.
struct RankReport {
  std::string gpu;           // DeviceIdentity::uuid; empty: the rank has none
  std::string nccl_trouble;  // why NCCL can't be used here; empty: it can
  int nccl_version = 0;      // as NCCL counts: 22809 is 2.28.9
};

// What they agree on.
struct Transport {
  bool is_nccl = false;
  bool has_gpus = false;  // any rank has one, so that MPI is not what was to be expected
  std::string reason;     // why it is MPI; empty with NCCL
};

// The transport for ranks that report this, in rank order. Pure. NCCL takes at least two ranks, a
// GPU for each, no two the same, and one version of NCCL on all; otherwise it is MPI, for the first
// reason that is found.
Transport choose_transport(std::span<const RankReport> ranks);

// One piece of every rank: `mine` is this rank's; what rank r sends goes to to[r], which has just
// that length on every rank.
using GatherPiece =
    std::function<void(std::span<const std::byte> mine, std::span<const std::span<std::byte>> to)>;

// Every rank's bytes, put together of pieces of at most piece_bytes (more than 0). `lengths`: of
// each rank's bytes, `mine` being one of them. Calls gather_piece equally often on every rank.
std::vector<std::vector<std::byte>> gather_in_pieces(std::span<const std::uint64_t> lengths,
                                                     std::span<const std::byte> mine,
                                                     std::size_t piece_bytes,
                                                     const GatherPiece& gather_piece);

// The same on every rank; smaller ones are for tests.
struct ExchangeLimits {
  std::size_t piece_bytes = std::size_t{64} << 20;    // of each rank at a time
  std::size_t memory_bytes = std::size_t{256} << 20;  // of all ranks' pieces, on each GPU
  std::chrono::milliseconds timeout = kNcclTimeout;
};

class PartExchange {
 public:
  // Agrees with the other ranks on the transport and opens it. `device`: the GPU that this rank
  // computes on, if it does. Collective; `world` must outlive it. Errors: NcclCommunicator's.
  PartExchange(const Communicator& world,
               const std::optional<DeviceIdentity>& device,
               ExchangeLimits limits = {});

  [[nodiscard]] const Communicator& world() const noexcept { return *world_; }

  [[nodiscard]] const Transport& transport() const noexcept { return transport_; }

  // "over NCCL (4 GPUs)", "over MPI (ranks 0 and 1 share a GPU)"; without the reason where no rank
  // has a GPU.
  [[nodiscard]] std::string describe() const;

  // Every rank's bytes, in rank order, on every rank. Collective. Errors: kDevice, on all ranks
  // alike, if a GPU lacks the memory; NcclCommunicator::gather's, after which the job must be
  // aborted.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather_all(std::span<const std::byte> mine);

 private:
  const Communicator* world_;
  ExchangeLimits limits_;
  Transport transport_;
  std::optional<NcclCommunicator> nccl_;  // if transport_.is_nccl
};

}  // namespace quantmill
