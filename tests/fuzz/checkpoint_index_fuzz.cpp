// Input: the text of model.safetensors.index.json.

#include <filesystem>
#include <set>
#include <string>

#include "checkpoint/index.h"
#include "tests/fuzz/fuzz.h"

namespace quantmill {
namespace {

void check(std::string_view json) {
  const CheckpointIndex index = parse_checkpoint_index(json);
  std::set<std::string> tensors;
  std::set<std::string> files;
  for (const auto& [tensor, file] : index.weight_map) {
    fuzz::require(tensors.insert(tensor).second, "a tensor is named once");
    files.insert(file);
  }
  fuzz::require(!files.empty(), "an index names files");
  fuzz::require(std::vector<std::string>(files.begin(), files.end()) == index.file_names,
                "file_names are the files of the weight map, sorted");
  for (const std::string& file : files) {
    const std::filesystem::path inside =
        ("folder" / std::filesystem::path(file)).lexically_normal();
    fuzz::require(*inside.begin() == "folder" && inside != "folder", "a file lies in the folder");
  }
}

}  // namespace
}  // namespace quantmill

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  quantmill::fuzz::only_input_errors(
      [&] { quantmill::check(quantmill::fuzz::as_text(data, size)); });
  return 0;
}
