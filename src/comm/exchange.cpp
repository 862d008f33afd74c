#include "comm/exchange.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"

namespace quantmill {
namespace {

std::string version_name(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Why these ranks, more than one, can't use NCCL; empty: they can.
std::string reason_for_mpi(std::span<const RankReport> ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].gpu.empty()) {
      return fmt::format("rank {} has no GPU", rank);
    }
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string& trouble = ranks[rank].nccl_trouble;
    if (!trouble.empty()) {
      const bool on_all = std::ranges::all_of(
          ranks, [&](const RankReport& other) { return other.nccl_trouble == trouble; });
      return on_all ? trouble : fmt::format("rank {}: {}", rank, trouble);
    }
  }
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto [owner, is_new] = owners.emplace(ranks[rank].gpu, rank);
    if (!is_new) {
      return fmt::format("ranks {} and {} share a GPU", owner->second, rank);
    }
  }
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].nccl_version != ranks[0].nccl_version) {
      return fmt::format("ranks 0 and {} have NCCL {} and {}",
                         rank,
                         version_name(ranks[0].nccl_version),
                         version_name(ranks[rank].nccl_version));
    }
  }
  return "";
}

std::vector<std::string> gather_texts(const Communicator& world, const std::string& mine) {
  std::vector<std::string> texts;
  for (const auto& bytes : world.gather_all(std::as_bytes(std::span(mine)))) {
    std::string& text = texts.emplace_back(bytes.size(), '\0');
    std::ranges::transform(bytes, text.begin(), [](std::byte byte) { return char(byte); });
  }
  return texts;
}

template <typename T>
std::vector<T> gather_numbers(const Communicator& world, T mine) {
  std::vector<T> numbers;
  for (const auto& bytes : world.gather_all(std::as_bytes(std::span(&mine, 1)))) {
    numbers.push_back(load_little_endian<T>(bytes));
  }
  return numbers;
}

std::vector<RankReport> gather_reports(const Communicator& world,
                                       const std::optional<DeviceIdentity>& device) {
  RankReport mine;
  mine.gpu = device ? device->uuid : "";
  if (device && world.size() > 1) {  // others need not look for the library
    mine.nccl_trouble = nccl_trouble();
    mine.nccl_version = nccl_version();
  }
  const std::vector<std::string> gpus = gather_texts(world, mine.gpu);
  const std::vector<std::string> troubles = gather_texts(world, mine.nccl_trouble);
  const std::vector<int> versions = gather_numbers(world, mine.nccl_version);
  std::vector<RankReport> reports;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    reports.push_back({gpus[rank], troubles[rank], versions[rank]});
  }
  return reports;
}

// The part of `bytes` that piece number begin / piece_bytes carries; empty past the end.
template <typename Byte>
std::span<Byte> piece_at(std::span<Byte> bytes, std::size_t begin, std::size_t piece_bytes) {
  const std::size_t from = std::min(begin, bytes.size());
  return bytes.subspan(from, std::min(piece_bytes, bytes.size() - from));
}

}  // namespace

Transport choose_transport(std::span<const RankReport> ranks) {
  Transport transport;
  transport.has_gpus =
      std::ranges::any_of(ranks, [](const RankReport& rank) { return !rank.gpu.empty(); });
  if (ranks.size() < 2) {
    transport.reason = "one rank only";
  } else if (!transport.has_gpus) {
    transport.reason = "no rank has a GPU";
  } else {
    transport.reason = reason_for_mpi(ranks);
  }
  transport.is_nccl = transport.reason.empty();
  return transport;
}

std::vector<std::vector<std::byte>> gather_in_pieces(std::span<const std::uint64_t> lengths,
                                                     std::span<const std::byte> mine,
                                                     std::size_t piece_bytes,
                                                     const GatherPiece& gather_piece) {
  check_invariant(piece_bytes > 0, "pieces have a size");
  std::vector<std::vector<std::byte>> all;
  for (const std::uint64_t length : lengths) {
    all.emplace_back(length);
  }
  const std::size_t longest = lengths.empty() ? 0 : std::ranges::max(lengths);
  for (std::size_t begin = 0; begin < longest; begin += piece_bytes) {
    std::vector<std::span<std::byte>> to;
    to.reserve(all.size());
    for (std::vector<std::byte>& bytes : all) {
      to.push_back(piece_at(std::span(bytes), begin, piece_bytes));
    }
    gather_piece(piece_at(mine, begin, piece_bytes), to);
  }
  return all;
}

PartExchange::PartExchange(const Communicator& world,
                           const std::optional<DeviceIdentity>& device,
                           ExchangeLimits limits)
    : world_(&world), limits_(limits), transport_(choose_transport(gather_reports(world, device))) {
  if (transport_.is_nccl) {
    nccl_.emplace(world, *device, limits.timeout);
  }
}

std::string PartExchange::describe() const {
  if (transport_.is_nccl) {
    return fmt::format("over NCCL ({} GPUs)", world_->size());
  }
  return transport_.has_gpus ? fmt::format("over MPI ({})", transport_.reason) : "over MPI";
}

std::vector<std::vector<std::byte>> PartExchange::gather_all(std::span<const std::byte> mine) {
  const std::vector<std::uint64_t> lengths =
      gather_numbers(*world_, static_cast<std::uint64_t>(mine.size()));
  const std::size_t longest = std::ranges::max(lengths);
  const std::size_t most = std::min(limits_.piece_bytes, limits_.memory_bytes / lengths.size());
  const std::size_t piece_bytes = std::max<std::size_t>(1, std::min(most, longest));
  if (nccl_) {
    world_->collectively([&] { nccl_->reserve(piece_bytes); });
    return gather_in_pieces(
        lengths, mine, piece_bytes, [&](auto piece, auto to) { nccl_->gather(piece, to); });
  }
  return gather_in_pieces(lengths, mine, piece_bytes, [&](auto piece, auto to) {
    const auto pieces = world_->gather_all(piece);
    for (std::size_t rank = 0; rank < to.size(); ++rank) {
      std::ranges::copy(pieces[rank], to[rank].begin());
    }
  });
}

}  // namespace quantmill
