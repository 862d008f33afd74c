#pragma once

// What follows from the table of commands and options: a man page and completion for shells.

#include <CLI/CLI.hpp>
#include <functional>

namespace quantmill {

// Registers `man` and `completion` on `app`, which must outlive the action: they print what is
// registered by then. When one is chosen, parsing sets `action` to what runs it.
void add_documentation_commands(CLI::App& app, std::function<int()>& action);

}  // namespace quantmill
