#pragma once

// `quantmill report`.

#include <CLI/CLI.hpp>
#include <functional>

namespace quantmill {

// Registers the command on `app`. When it is chosen, parsing sets `action` to what runs it and
// gives the exit status.
void add_report_command(CLI::App& app, std::function<int()>& action);

}  // namespace quantmill
