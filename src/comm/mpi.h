#pragma once

// MPI for the rest of the program: the only module that knows it. Every call of a Communicator is
// collective (all its ranks must call, in the same order) and made by the main thread, unless it
// says otherwise. Errors are kComm.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quantmill {

// What the launcher (mpirun, srun) calls this rank, before MPI is up; nothing without one.
std::optional<std::string_view> launched_rank();

// Initializes MPI (funneled) and finalizes it. Construct once, in a main, before there are threads:
// ranks that are all on one machine get Open MPI's `pml` ob1, and one without a launcher runs
// isolated (no daemon, session directory or port), where the environment does not say otherwise.
// Destroyed while an exception is in flight it does not finalize: that would wait for ranks that
// never come.
class MpiEnvironment {
 public:
  MpiEnvironment();
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

 private:
  int uncaught_ = 0;
};

class Communicator {
 public:
  // All ranks of the job.
  static Communicator world();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  ~Communicator();

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;

  // The ranks that share memory with this one. ranks_per_node > 0 instead makes groups of that many
  // consecutive ranks: one machine acting as several nodes, for tests.
  [[nodiscard]] Communicator split_by_node(int ranks_per_node) const;

  void barrier() const;

  // `bytes` of `root`, on every rank.
  [[nodiscard]] std::vector<std::byte> broadcast(std::vector<std::byte> bytes, int root) const;

  // Every rank's bytes, in rank order, on every rank.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather_all(
      std::span<const std::byte> bytes) const;

  // Element-wise sum over ranks. Every element must be 0 on all ranks but one: then the result is
  // exact whatever the order in which MPI adds.
  void sum_disjoint(std::span<double> values) const;

  // Runs `body` on every rank, then agrees on the outcome: if it threw on any rank, the Error of
  // the lowest such rank is thrown on all (with "rank N: " before its message unless
  // all ranks failed).
  void collectively(const std::function<void()>& body) const;

  // Ends the whole job at once with this exit status; for failures outside collectively(). Not
  // collective.
  [[noreturn]] void abort(int status) const;

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  friend class SharedWords;
  friend class JobStop;
  std::unique_ptr<State> state_;
};

// Numbers in memory that the ranks of a node share, 0 at first. No MPI call is needed to read or
// write them, so a rank that computes, or does not run at all, never makes another wait.
class SharedWords {
 public:
  // Collective over `node`, whose ranks must share memory (or be one rank).
  SharedWords(const Communicator& node, std::size_t count);
  ~SharedWords();
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;

  // Thread-safe, not collective; index below `count`.
  [[nodiscard]] std::atomic_ref<std::uint64_t> at(std::size_t index) const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A counter in memory that the ranks of a node share: free workers take the next task from it. No
// MPI call is needed to take one, so a rank that computes never makes another wait.
class SharedCounter {
 public:
  // Collective over `node`, whose ranks must share memory (or be one rank).
  explicit SharedCounter(const Communicator& node);

  // The next number, from 0. Thread-safe, not collective.
  std::uint64_t take() noexcept;
  // Tells every worker of the node to stop taking tasks: one of them failed. Thread-safe, not
  // collective.
  void stop() noexcept;
  [[nodiscard]] bool stopped() const noexcept;

 private:
  SharedWords words_;
};

// Tells all ranks of a job to stop, whoever noticed the reason. request() and is_requested() are
// not collective and cost next to nothing, so that they can be called between tasks; main thread
// only.
class JobStop {
 public:
  // Collective over `world`, which must outlive it.
  explicit JobStop(const Communicator& world);
  ~JobStop();
  JobStop(const JobStop&) = delete;
  JobStop& operator=(const JobStop&) = delete;

  void request();
  [[nodiscard]] bool is_requested();

  // Collective: takes in every message that is still on its way, so that the next phase starts
  // without any.
  void settle();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quantmill
