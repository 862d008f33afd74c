#pragma once

// How far a phase of a job is, as one line that changes while it runs.

#include <cstddef>
#include <cstdint>
#include <string>

namespace quantmill {

struct Progress {
  struct Count {
    std::uint64_t done = 0;
    std::uint64_t all = 0;
  };

  std::string phase;
  double seconds = 0;  // since it began
  Count bytes;         // read and written
  Count tasks;
  Count tensors;            // all 0: it is not known which tasks are of which
  std::string slowest;      // the rank that has done least; empty if there is one only
  double slowest_rate = 0;  // bytes a second
};

// "write 1.23/2.70 GB (45 %)  0.51 GB/s  0:03 left  55/120 tensors  slowest rank 1 on a: 0.20
// GB/s": as many of these from the left as fit into the columns. The time that is left is reckoned
// from the phase's mean speed.
std::string progress_line(const Progress& progress, std::size_t columns);

}  // namespace quantmill
