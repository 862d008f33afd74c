#include "tests/support/released_model.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill::test {
namespace {

// "0-2,5" is 0, 1, 2, 5.
std::vector<std::string> numbers(const std::string& ranges) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < ranges.size();) {
    const std::size_t end = std::min(ranges.find(',', begin), ranges.size());
    const std::string range = ranges.substr(begin, end - begin);
    const std::size_t dash = std::min(range.find('-'), range.size());
    const int first = std::stoi(range.substr(0, dash));
    const int last = dash == range.size() ? first : std::stoi(range.substr(dash + 1));
    for (int number = first; number <= last; ++number) {
      found.push_back(std::to_string(number));
    }
    begin = end + 1;
  }
  return found;
}

// A file's name as gtest takes it.
std::string test_name(const std::filesystem::path& file) {
  std::string name = file.stem().string();
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

}  // namespace

void add_tensors(const std::string& pattern,
                 const std::vector<std::uint64_t>& shape,
                 std::vector<SourceTensor>& tensors) {
  const std::size_t open = pattern.find('[');
  if (open == std::string::npos) {
    SourceTensor tensor;
    tensor.entry.name = pattern;
    tensor.entry.dtype = DType::kBf16;
    tensor.entry.shape = shape;
    tensors.push_back(tensor);
    return;
  }
  const std::size_t close = pattern.find(']');
  for (const std::string& number : numbers(pattern.substr(open + 1, close - open - 1))) {
    add_tensors(pattern.substr(0, open) + number + pattern.substr(close + 1), shape, tensors);
  }
}

std::map<std::string, std::filesystem::path> released_models() {
  std::map<std::string, std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(golden("families"))) {
    files.emplace(test_name(entry.path()), entry.path());
  }
  return files;
}

ReleasedModel read_released_model(const std::string& name) {
  const auto json = nlohmann::json::parse(read_text(released_models().at(name)));
  ReleasedModel model{
      json["config"].dump(), json["architecture"], {}, json["tensors"], json["folds"]};
  for (const auto& line : json["header"]) {
    add_tensors(line[0], line[1], model.tensors);
  }
  return model;
}

void write_without_data(const ReleasedModel& model, const std::filesystem::path& folder) {
  nlohmann::json header;
  std::uint64_t end = 0;
  for (const SourceTensor& tensor : model.tensors) {
    std::uint64_t size = 2;
    for (const std::uint64_t dimension : tensor.entry.shape) {
      size *= dimension;
    }
    header[tensor.entry.name] = {
        {"dtype", "BF16"}, {"shape", tensor.entry.shape}, {"data_offsets", {end, end + size}}};
    end += size;
  }
  const std::filesystem::path file = folder / "model.safetensors";
  write_raw_safetensors(file, header.dump(), "");
  std::filesystem::resize_file(file, std::filesystem::file_size(file) + end);
  write_text(folder / "config.json", model.config);
}

}  // namespace quantmill::test
