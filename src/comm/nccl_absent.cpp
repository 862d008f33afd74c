// What comm/nccl.h declares, in a build without nccl.h or without CUDA.

#include "comm/nccl.h"

#include "base/error.h"

namespace quantmill {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kComm, nccl_trouble());
}

}  // namespace

struct NcclCommunicator::State {};

std::string nccl_trouble() {
  return "built without NCCL";
}

int nccl_version() {
  return 0;
}

NcclCommunicator::NcclCommunicator(const Communicator& /*world*/,
                                   const DeviceIdentity& /*device*/,
                                   std::chrono::milliseconds /*timeout*/) {
  refuse();
}

NcclCommunicator::NcclCommunicator(NcclCommunicator&&) noexcept = default;
NcclCommunicator& NcclCommunicator::operator=(NcclCommunicator&&) noexcept = default;
NcclCommunicator::~NcclCommunicator() = default;

// NOLINTBEGIN(readability-convert-member-functions-to-static): where there is NCCL they are none

void NcclCommunicator::reserve(std::size_t /*piece_bytes*/) {
  refuse();
}

void NcclCommunicator::gather(std::span<const std::byte> /*mine*/,
                              std::span<const std::span<std::byte>> /*to*/) {
  refuse();
}

// NOLINTEND(readability-convert-member-functions-to-static)

}  // namespace quantmill
