#pragma once

// Where a job says what it does: lines to stderr, and to a JSON-lines file if asked.
// Library code gets a Log passed in; it never prints.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/terminal.h"

namespace spdlog {
class logger;
}

namespace quantmill {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  std::optional<std::filesystem::path> json_file;  // one JSON object a line: time, level, message
  bool live = false;  // stderr is a terminal on which a line may change: show() does something
};

// Copyable; all copies write to the same sinks. A default-made Log is silent (ranks other than 0).
class Log {
 public:
  Log();

  // Opens the sinks. Errors: kIo if the JSON file can't be created.
  static Log open(const LogOptions& options);

  void debug(const std::string& message) const;
  void info(const std::string& message) const;
  void warn(const std::string& message) const;
  // An info line of progress. Where a live line tells of it already, to the JSON file alone.
  void progress(const std::string& message) const;
  // The live line below the log; "" takes it away. Nothing without LogOptions::live.
  void show(const std::string& text) const;

  [[nodiscard]] bool is_live() const { return live_ != nullptr; }

  // Why the program ends: "quantmill: message" on stderr, level "error" in the JSON file.
  void failure(const std::string& message) const;

 private:
  std::shared_ptr<spdlog::logger> logger_;
  std::shared_ptr<LiveLine> live_;               // null without one
  std::shared_ptr<spdlog::logger> file_logger_;  // the JSON file alone; null without one
};

}  // namespace quantmill
