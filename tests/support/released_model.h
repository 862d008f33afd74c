#pragma once

// Headers of released models, as tests/golden/families has them: names and shapes, no data.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/reader.h"

namespace quantmill::test {

struct ReleasedModel {
  std::string config;
  std::string architecture;
  std::vector<SourceTensor> tensors;  // BF16; without places
  std::size_t num_tensors = 0;
  std::size_t num_folds = 0;
};

// Name, as gtest takes it ("kimi_k2") -> file.
std::map<std::string, std::filesystem::path> released_models();

ReleasedModel read_released_model(const std::string& name);

// "layers.[0-2,5].x" is layers 0, 1, 2 and 5; any number of such ranges.
void add_tensors(const std::string& pattern,
                 const std::vector<std::uint64_t>& shape,
                 std::vector<SourceTensor>& tensors);

// As a checkpoint in `folder`: a header, and a hole where the weights would be.
void write_without_data(const ReleasedModel& model, const std::filesystem::path& folder);

}  // namespace quantmill::test
