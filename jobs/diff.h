#pragma once

// `quantmill diff`.

#include <CLI/CLI.hpp>
#include <functional>

namespace quantmill {

// Registers the command on `app`. When it is chosen, parsing sets `action` to what runs it and
// gives the exit status; it throws Error for what can be told before any work.
void add_diff_command(CLI::App& app, std::function<int()>& action);

}  // namespace quantmill
