#pragma once

// Threads of one rank. Work is taken from a counter by whoever is free; results never depend on who
// did what.

#include <cstddef>
#include <functional>
#include <vector>

namespace quantmill {

// Runs body(worker) for worker = 0 … num_workers-1, worker 0 on the calling thread, and waits for
// all of them. The exception of the lowest-numbered worker that failed is rethrown.
void run_workers(int num_workers, const std::function<void(int worker)>& body);

// Runs body(index, worker) once for every index below `count`; free workers take the next. After a
// failure no further index is started.
void run_indexed(int num_workers,
                 std::size_t count,
                 const std::function<void(std::size_t index, int worker)>& body);

// As many as there are workers, each made of the same arguments, none of which is moved from.
template <typename Worker, typename... Arguments>
std::vector<Worker> make_workers(int num_workers, Arguments&&... arguments) {
  std::vector<Worker> workers;
  workers.reserve(static_cast<std::size_t>(num_workers));
  for (int worker = 0; worker < num_workers; ++worker) {
    workers.emplace_back(arguments...);
  }
  return workers;
}

}  // namespace quantmill
