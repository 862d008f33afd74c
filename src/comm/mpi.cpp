#include "comm/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/handle.h"

namespace quantmill {
namespace {

void check_mpi(int result, const char* call) {
  if (result != MPI_SUCCESS) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(result, text.data(), &length);
    throw Error(ErrorCode::kComm, fmt::format("{} failed: {}", call, text.data()));
  }
}

struct CommunicatorTraits {
  using Handle = MPI_Comm;

  static Handle null() noexcept { return MPI_COMM_NULL; }

  static void close(Handle handle) noexcept {
    // A job that unwinds from an error must not wait for ranks that are not coming.
    if (std::uncaught_exceptions() == 0) {
      MPI_Comm_free(&handle);
    }
  }
};

// MPI counts are int; larger messages go in pieces of this size.
constexpr std::size_t kPieceBytes = std::size_t{1} << 30;

// Open MPI takes a fifth of a second to look for networks, and alone as long again to start and end
// a daemon. Ranks of one machine need neither: what the user has not set is set for them, before
// MPI reads it. All ranks that are alone share one session directory, which the first to end
// removes under the one that starts: they make none, and open no port.
void choose_transports_of_one_machine() {
  const char* const ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* const here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const bool alone = !launched_rank();
  if (alone) {
    ::setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    ::setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
    ::setenv("OMPI_MCA_btl", "self", 0);
  }
  if (alone || (ranks != nullptr && here != nullptr && std::string_view(ranks) == here)) {
    ::setenv("OMPI_MCA_pml", "ob1", 0);  // shared memory, and TCP
  }
}

}  // namespace

std::optional<std::string_view> launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(name)) {
      return rank;
    }
  }
  return std::nullopt;
}

MpiEnvironment::MpiEnvironment() : uncaught_(std::uncaught_exceptions()) {
  choose_transports_of_one_machine();
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error(
        ErrorCode::kComm,
        "this MPI does not support threads (MPI_THREAD_FUNNELED); use a build of it that does");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiEnvironment::~MpiEnvironment() {
  if (std::uncaught_exceptions() == uncaught_) {
    MPI_Finalize();
  }
}

struct Communicator::State {
  UniqueHandle<CommunicatorTraits> handle;
  int rank = 0;
  int size = 1;

  explicit State(MPI_Comm communicator) : handle(communicator) {
    check_mpi(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  }
};

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}

Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

Communicator Communicator::world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return Communicator(std::make_unique<State>(copy));
}

int Communicator::rank() const noexcept {
  return state_->rank;
}

int Communicator::size() const noexcept {
  return state_->size;
}

Communicator Communicator::split_by_node(int ranks_per_node) const {
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(
                state_->handle.get(), MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &shared),
            "MPI_Comm_split_type");
  if (ranks_per_node <= 0) {
    return Communicator(std::make_unique<State>(shared));
  }
  const UniqueHandle<CommunicatorTraits> owner(shared);
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(shared, rank() / ranks_per_node, rank(), &part), "MPI_Comm_split");
  return Communicator(std::make_unique<State>(part));
}

void Communicator::barrier() const {
  check_mpi(MPI_Barrier(state_->handle.get()), "MPI_Barrier");
}

std::vector<std::byte> Communicator::broadcast(std::vector<std::byte> bytes, int root) const {
  std::uint64_t size_bytes = bytes.size();
  check_mpi(MPI_Bcast(&size_bytes, 1, MPI_UINT64_T, root, state_->handle.get()), "MPI_Bcast");
  bytes.resize(size_bytes);
  for (std::size_t begin = 0; begin < size_bytes; begin += kPieceBytes) {
    const std::size_t piece = std::min(kPieceBytes, size_bytes - begin);
    check_mpi(
        MPI_Bcast(
            bytes.data() + begin, static_cast<int>(piece), MPI_BYTE, root, state_->handle.get()),
        "MPI_Bcast");
  }
  return bytes;
}

std::vector<std::vector<std::byte>> Communicator::gather_all(
    std::span<const std::byte> bytes) const {
  std::vector<std::vector<std::byte>> all;
  for (int root = 0; root < size(); ++root) {
    std::vector<std::byte> mine;
    if (root == rank()) {
      mine.assign(bytes.begin(), bytes.end());
    }
    all.push_back(broadcast(std::move(mine), root));
  }
  return all;
}

void Communicator::sum_disjoint(std::span<double> values) const {
  constexpr std::size_t kPiece = std::size_t{1} << 24;
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    const std::size_t piece = std::min(kPiece, values.size() - begin);
    check_mpi(MPI_Allreduce(MPI_IN_PLACE,
                            values.data() + begin,
                            static_cast<int>(piece),
                            MPI_DOUBLE,
                            MPI_SUM,
                            state_->handle.get()),
              "MPI_Allreduce");
  }
}

void Communicator::collectively(const std::function<void()>& body) const {
  std::optional<Error> failure;
  try {
    body();
  } catch (const std::exception& exception) {
    failure = as_error(exception);
  }
  // The lowest rank that failed, or `size` if none did; and whether all did.
  std::array<int, 2> mine = {failure ? rank() : size(), failure ? 1 : 0};
  std::array<int, 2> least = {size(), 0};
  check_mpi(MPI_Allreduce(mine.data(), least.data(), 2, MPI_INT, MPI_MIN, state_->handle.get()),
            "MPI_Allreduce");
  const int lowest = least[0];
  const bool all_failed = least[1] == 1;
  if (lowest == size()) {
    return;
  }
  std::vector<std::byte> told;
  if (rank() == lowest) {
    const std::string& message = failure->message();
    told.resize(1 + message.size());
    told[0] = static_cast<std::byte>(static_cast<int>(failure->code()));
    copy_bytes(told.data() + 1, message.data(), message.size());
  }
  told = broadcast(std::move(told), lowest);
  std::string message(told.size() - 1, '\0');
  copy_bytes(message.data(), told.data() + 1, message.size());
  if (!all_failed) {
    message = fmt::format("rank {}: {}", lowest, message);
  }
  throw Error(static_cast<ErrorCode>(told[0]), message).agreed();
}

// Of a communicator all the same: who has none has no business here.
// NOLINTNEXTLINE(readability-convert-member-functions-to-static)
void Communicator::abort(int status) const {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::terminate();
}

struct SharedWords::State {
  MPI_Win window = MPI_WIN_NULL;
  std::uint64_t* words = nullptr;
};

SharedWords::SharedWords(const Communicator& node, std::size_t count)
    : state_(std::make_unique<State>()) {
  const std::size_t size_bytes = node.rank() == 0 ? count * sizeof(std::uint64_t) : 0;
  void* base = nullptr;
  check_mpi(MPI_Win_allocate_shared(static_cast<MPI_Aint>(size_bytes),
                                    1,
                                    MPI_INFO_NULL,
                                    node.state_->handle.get(),
                                    &base,
                                    &state_->window),
            "MPI_Win_allocate_shared");
  MPI_Aint whole_bytes = 0;
  int unit = 0;
  check_mpi(MPI_Win_shared_query(state_->window, 0, &whole_bytes, &unit, &base),
            "MPI_Win_shared_query");
  state_->words = static_cast<std::uint64_t*>(base);
  for (std::size_t index = 0; node.rank() == 0 && index < count; ++index) {
    at(index).store(0);
  }
  node.barrier();
}

SharedWords::~SharedWords() {
  if (std::uncaught_exceptions() == 0) {
    MPI_Win_free(&state_->window);
  }
}

std::atomic_ref<std::uint64_t> SharedWords::at(std::size_t index) const noexcept {
  return std::atomic_ref(state_->words[index]);
}

namespace {

// The words of a SharedCounter.
enum CounterWord : std::size_t { kNext, kStopped, kNumWords };

}  // namespace

SharedCounter::SharedCounter(const Communicator& node) : words_(node, kNumWords) {}

std::uint64_t SharedCounter::take() noexcept {
  return words_.at(kNext).fetch_add(1);
}

void SharedCounter::stop() noexcept {
  words_.at(kStopped).store(1);
}

bool SharedCounter::stopped() const noexcept {
  return words_.at(kStopped).load() != 0;
}

struct JobStop::State {
  UniqueHandle<CommunicatorTraits> handle;  // of its own: its messages meet no others
  int rank = 0;
  int size = 1;
  bool sent = false;
  int received = 0;

  void receive_one() {
    check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, MPI_ANY_SOURCE, 0, handle.get(), MPI_STATUS_IGNORE),
              "MPI_Recv");
    ++received;
  }
};

JobStop::JobStop(const Communicator& world) : state_(std::make_unique<State>()) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(world.state_->handle.get(), &copy), "MPI_Comm_dup");
  state_->handle.reset(copy);
  state_->rank = world.rank();
  state_->size = world.size();
}

JobStop::~JobStop() = default;

void JobStop::request() {
  if (state_->sent) {
    return;
  }
  state_->sent = true;
  for (int rank = 0; rank < state_->size; ++rank) {
    if (rank != state_->rank) {
      // Without content it goes out at once, whether or not the other rank is listening.
      check_mpi(MPI_Send(nullptr, 0, MPI_BYTE, rank, 0, state_->handle.get()), "MPI_Send");
    }
  }
}

bool JobStop::is_requested() {
  if (!state_->sent && state_->received == 0) {
    int waiting = 0;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, 0, state_->handle.get(), &waiting, MPI_STATUS_IGNORE),
              "MPI_Iprobe");
    if (waiting != 0) {
      state_->receive_one();
    }
  }
  return state_->sent || state_->received > 0;
}

void JobStop::settle() {
  int mine = state_->sent ? 1 : 0;
  int senders = 0;
  check_mpi(MPI_Allreduce(&mine, &senders, 1, MPI_INT, MPI_SUM, state_->handle.get()),
            "MPI_Allreduce");
  while (state_->received < senders - mine) {
    state_->receive_one();
  }
  state_->sent = false;
  state_->received = 0;
}

}  // namespace quantmill
