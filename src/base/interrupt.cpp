#include "base/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "base/error.h"

namespace quantmill {
namespace {

// Written by the handler, which can be given nothing; lock-free, so that the handler may.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<int> received_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void on_signal(int number) {
  if (received_signal.exchange(number) != 0) {
    _exit(static_cast<int>(ErrorCode::kInterrupted));
  }
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};

  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    sigaction(number, &action, nullptr);
  }
}

bool is_interrupted() noexcept {
  return received_signal.load() != 0;
}

std::string interrupting_signal() {
  switch (received_signal.load()) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    default:
      return "a signal";
  }
}

}  // namespace quantmill
