#pragma once

// Signals that ask the program to stop in good order: SIGTERM, SIGINT, SIGUSR1, SIGUSR2 (batch
// systems send these before a time limit). Process-wide, since signals are.

#include <string>

namespace quantmill {

// From now on the first such signal only sets a flag; a second one ends the process at once with
// exit status 75. SIGPIPE and SIGHUP are left as they are.
void catch_interrupts();

// Whether such a signal has come.
bool is_interrupted() noexcept;

// "SIGTERM" …; "a signal" if none has come.
std::string interrupting_signal();

}  // namespace quantmill
