#pragma once

// Threads of one rank. Work is taken from a counter by whoever is free; results never depend on who
// did what.

#include <cstddef>
#include <functional>

namespace quantmill {

// Runs body(worker) for worker = 0 … num_workers-1, worker 0 on the calling thread, and waits for
// all of them. The exception of the lowest-numbered worker that failed is rethrown.
void run_workers(int num_workers, const std::function<void(int worker)>& body);

// Runs body(index, worker) once for every index below `count`; free workers take the next. After a
// failure no further index is started.
void run_indexed(int num_workers,
                 std::size_t count,
                 const std::function<void(std::size_t index, int worker)>& body);

}  // namespace quantmill
