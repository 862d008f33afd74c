#pragma once

// A folder that exists as long as the object does.

#include <filesystem>

namespace quantmill::test {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// tests/golden/NAME in the source tree.
std::filesystem::path golden(const std::string& name);

}  // namespace quantmill::test
