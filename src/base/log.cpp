#include "base/log.h"

#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "base/error.h"

namespace quantmill {
namespace {

// Text as the inside of a JSON string.
std::string json_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The JSON sink escapes the message itself, since spdlog's patterns do not.
class JsonLinesSink : public spdlog::sinks::sink {
 public:
  explicit JsonLinesSink(const std::string& file) : file_(file, true) {}

  void log(const spdlog::details::log_msg& message) override {
    const std::string escaped = json_escape({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg copy = message;
    copy.payload = escaped;
    file_.log(copy);
    file_.flush();
  }

  void flush() override { file_.flush(); }

  void set_pattern(const std::string& pattern) override { file_.set_pattern(pattern); }

  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    file_.set_formatter(std::move(formatter));
  }

 private:
  spdlog::sinks::basic_file_sink_mt file_;
};

// Lines above a live one.
class LiveSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LiveSink(std::shared_ptr<LiveLine> live) : live_(std::move(live)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    live_->print({line.data(), line.size()});
  }

  void flush_() override {}

 private:
  std::shared_ptr<LiveLine> live_;
};

}  // namespace

Log::Log() : logger_(std::make_shared<spdlog::logger>("silent")) {}

Log Log::open(const LogOptions& options) {
  Log log;
  std::vector<spdlog::sink_ptr> sinks;
  spdlog::sink_ptr terminal;
  if (options.live) {
    log.live_ = std::make_shared<LiveLine>();
    terminal = std::make_shared<LiveSink>(log.live_);
  } else {
    terminal = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  terminal->set_pattern("%H:%M:%S %v");
  terminal->set_level(to_spdlog(options.level));
  sinks.push_back(std::move(terminal));
  if (options.json_file) {
    // spdlog would make missing folders.
    const std::filesystem::path folder =
        std::filesystem::absolute(*options.json_file).parent_path();
    if (!std::filesystem::is_directory(folder)) {
      throw Error(ErrorCode::kIo,
                  fmt::format("cannot write the log file {}: its folder does not exist",
                              options.json_file->string()));
    }
    try {
      auto file = std::make_shared<JsonLinesSink>(options.json_file->string());
      file->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})");
      sinks.push_back(file);
      log.file_logger_ = std::make_shared<spdlog::logger>("quantmill-file", std::move(file));
    } catch (const spdlog::spdlog_ex& failure) {
      throw Error(
          ErrorCode::kIo,
          fmt::format(
              "cannot write the log file {}: {}", options.json_file->string(), failure.what()));
    }
  }
  log.logger_ = std::make_shared<spdlog::logger>("quantmill", sinks.begin(), sinks.end());
  log.logger_->set_level(spdlog::level::debug);
  return log;
}

void Log::debug(const std::string& message) const {
  logger_->debug("{}", message);
}

void Log::info(const std::string& message) const {
  logger_->info("{}", message);
}

void Log::progress(const std::string& message) const {
  if (!live_) {
    info(message);
  } else if (file_logger_) {
    file_logger_->info("{}", message);
  }
}

void Log::show(const std::string& text) const {
  if (live_) {
    live_->show(text);
  }
}

void Log::warn(const std::string& message) const {
  logger_->warn("warning: {}", message);
}

void Log::failure(const std::string& message) const {
  show("");
  std::fputs(fmt::format("quantmill: {}\n", message).c_str(), stderr);
  if (file_logger_) {
    file_logger_->error("{}", message);
  }
}

}  // namespace quantmill
