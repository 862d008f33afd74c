#pragma once

// What standard error is connected to, and a line on it that changes in place.

#include <cstddef>
#include <mutex>
#include <string>

namespace quantmill {

// Whether standard error is a terminal that can go back to the beginning of a line: TERM is neither
// "dumb" nor unset.
bool has_live_terminal();

// Columns of the terminal on standard error; else of COLUMNS in the environment; else 80.
std::size_t terminal_columns();

// The last line of a terminal, written anew and again. Other lines go above it. Thread-safe.
class LiveLine {
 public:
  // Shows `text` in place of what is shown, cut to the terminal's width; "" takes the line away.
  void show(const std::string& text);
  // Writes a finished line, ending with a line feed, and shows the live one below it.
  void print(const std::string& line);

 private:
  std::mutex mutex_;
  std::string shown_;
};

}  // namespace quantmill
