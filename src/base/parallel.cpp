#include "base/parallel.h"

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace quantmill {

void run_workers(int num_workers, const std::function<void(int worker)>& body) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(num_workers));
  const auto guarded = [&](int worker) {
    try {
      body(worker);
    } catch (...) {
      failures[static_cast<std::size_t>(worker)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int worker = 1; worker < num_workers; ++worker) {
      threads.emplace_back(guarded, worker);
    }
    guarded(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

void run_indexed(int num_workers,
                 std::size_t count,
                 const std::function<void(std::size_t index, int worker)>& body) {
  std::atomic<std::size_t> next = 0;
  run_workers(num_workers, [&](int worker) {
    try {
      for (std::size_t index = next++; index < count; index = next++) {
        body(index, worker);
      }
    } catch (...) {
      next = count;
      throw;
    }
  });
}

}  // namespace quantmill
