#include "temporary_folder.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace quantmill::test {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "quantmill-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error("cannot make a temporary folder");
  }
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(QUANTMILL_GOLDEN_DIR) / name;
}

}  // namespace quantmill::test
