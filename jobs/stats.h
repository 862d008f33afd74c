#pragma once

// `quantmill stats`: import, merge, show.

#include <CLI/CLI.hpp>
#include <functional>

namespace quantmill {

// Registers the command and its sub-commands on `app`. When one is chosen, parsing sets `action` to
// what runs it and gives the exit status; it throws Error for everything that goes wrong.
void add_stats_command(CLI::App& app, std::function<int()>& action);

}  // namespace quantmill
