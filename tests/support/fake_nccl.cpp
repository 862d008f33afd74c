#include "tests/support/fake_nccl.h"

#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>

#include "comm/nccl_library.h"

// NCCL keeps this type to itself.
struct ncclComm {
  int size = 1;
  int num_pending = 0;  // answers until the operation under way is done
  bool hangs = false;
  ncclResult_t result = ncclSuccess;
};

namespace quantmill {
namespace {

int stream_pending = 0;

ncclResult_t begin(ncclComm_t comm, const std::string& function) {
  const test::FakeNccl& fake = test::fake_nccl();
  comm->hangs = fake.hanging == function;
  comm->num_pending = fake.delay;
  comm->result = fake.failing == function ? ncclRemoteError : ncclSuccess;
  return comm->hangs || comm->num_pending > 0 ? ncclInProgress : comm->result;
}

ncclResult_t get_version(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  std::memset(id, 42, sizeof *id);
  return ncclSuccess;
}

ncclResult_t comm_init(
    ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  int world_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  const bool is_right = rank == world_rank && config->blocking == 0 && id.internal[0] == 42 &&
                        id.internal[NCCL_UNIQUE_ID_BYTES - 1] == 42;
  if (!is_right) {
    return ncclInvalidArgument;
  }
  ++test::fake_nccl().num_inits;
  *comm = new ncclComm;
  (*comm)->size = size;
  return begin(*comm, "ncclCommInitRankConfig");
}

ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t* result) {
  if (comm->hangs || comm->num_pending > 0) {
    --comm->num_pending;
    *result = ncclInProgress;
  } else {
    *result = comm->result;
  }
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t comm) {
  ++test::fake_nccl().num_finalized;
  return begin(comm, "ncclCommFinalize");
}

ncclResult_t comm_destroy(ncclComm_t comm) {
  ++test::fake_nccl().num_destroyed;
  delete comm;
  return ncclSuccess;
}

ncclResult_t comm_abort(ncclComm_t comm) {
  ++test::fake_nccl().num_aborted;
  delete comm;
  return ncclSuccess;
}

ncclResult_t all_gather(const void* send,
                        void* receive,
                        size_t count,
                        ncclDataType_t type,
                        ncclComm_t comm,
                        cudaStream_t /*stream*/) {
  test::FakeNccl& fake = test::fake_nccl();
  ++fake.num_gathers;
  stream_pending = fake.delay;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const auto* slots = static_cast<const std::byte*>(receive);
  if (type != ncclUint8 || send != slots + static_cast<std::size_t>(rank) * count) {
    return ncclInvalidArgument;
  }
  MPI_Allgather(
      MPI_IN_PLACE, 0, MPI_BYTE, receive, static_cast<int>(count), MPI_BYTE, MPI_COMM_WORLD);
  return begin(comm, "ncclAllGather");
}

const char* get_error_string(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "unknown";
}

const char* get_last_error(ncclComm_t /*comm*/) {
  return "connection closed by peer";
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary kLibrary{get_version,
                                    get_unique_id,
                                    comm_init,
                                    get_async_error,
                                    comm_finalize,
                                    comm_destroy,
                                    comm_abort,
                                    all_gather,
                                    get_error_string,
                                    get_last_error,
                                    ""};
  return kLibrary;
}

namespace test {

FakeNccl& fake_nccl() {
  static FakeNccl fake;
  return fake;
}

}  // namespace test
}  // namespace quantmill

using quantmill::test::fake_nccl;

extern "C" {

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  ++fake_nccl().num_streams;
  *stream = static_cast<cudaStream_t>(std::malloc(1));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  --fake_nccl().num_streams;
  std::free(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t /*stream*/) {
  if (fake_nccl().stream_hangs || quantmill::stream_pending > 0) {
    --quantmill::stream_pending;
    return cudaErrorNotReady;
  }
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t size_bytes) {
  if (fake_nccl().out_of_memory) {
    return cudaErrorMemoryAllocation;
  }
  ++fake_nccl().num_buffers;
  *memory = std::malloc(size_bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  --fake_nccl().num_buffers;
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to,
                            const void* from,
                            size_t size_bytes,
                            cudaMemcpyKind /*kind*/,
                            cudaStream_t /*stream*/) {
  std::memcpy(to, from, size_bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t size_bytes, cudaStream_t /*stream*/) {
  std::memset(memory, value, size_bytes);
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "unknown";
}

}  // extern "C"
