#pragma once

// A made-up NCCL, and the functions of the CUDA runtime that src/comm/nccl.cpp calls: a test that
// links fake_nccl.cpp runs that file on any machine. Bytes go over MPI, device memory is the heap.

#include <string>

namespace quantmill::test {

struct FakeNccl {
  // What it does, to be set by a test.
  int delay = 0;        // how often it answers that a call or the stream is not done yet
  std::string failing;  // the function whose operation ends with ncclRemoteError
  std::string hanging;  // the function whose operation never ends
  bool stream_hangs = false;
  bool out_of_memory = false;
  // What was done.
  int num_inits = 0;
  int num_gathers = 0;
  int num_finalized = 0;
  int num_destroyed = 0;
  int num_aborted = 0;
  int num_buffers = 0;  // that are not freed
  int num_streams = 0;
};

FakeNccl& fake_nccl();

}  // namespace quantmill::test
