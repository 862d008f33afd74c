#include "base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace quantmill {
namespace {

constexpr std::size_t kUsualColumns = 80;
// To the first column, then: erase to the end of the line (ECMA-48 EL, which every terminal but a
// dumb one has).
constexpr const char* kEraseLine = "\r\x1b[K";

// In one piece: other processes write to the same terminal.
void write_error(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

bool has_live_terminal() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb" &&
         !std::string_view(kind).empty();
}

std::size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  std::size_t columns = 0;
  if (const char* const given = std::getenv("COLUMNS")) {
    const std::string_view text(given);
    std::from_chars(text.data(), text.data() + text.size(), columns);
  }
  return columns > 0 ? columns : kUsualColumns;
}

void LiveLine::show(const std::string& text) {
  const std::lock_guard lock(mutex_);
  // Not in the last column: some terminals go to the next line there.
  const std::string fitting = text.substr(0, terminal_columns() - 1);
  if (fitting != shown_) {
    shown_ = fitting;
    write_error(kEraseLine + shown_);
  }
}

void LiveLine::print(const std::string& line) {
  const std::lock_guard lock(mutex_);
  write_error(shown_.empty() ? line : kEraseLine + line + shown_);
}

}  // namespace quantmill
