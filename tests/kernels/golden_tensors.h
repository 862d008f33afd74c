#pragma once

// Reads the golden safetensors files of the kernel tests, independent of the program's own reader.

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace quantmill::test {

class GoldenTensors {
 public:
  explicit GoldenTensors(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
      throw std::runtime_error("cannot open " + file.string());
    }
    const std::string all{std::istreambuf_iterator<char>(in), {}};
    std::uint64_t length = 0;
    std::memcpy(&length, all.data(), sizeof length);
    header_ = nlohmann::json::parse(all.substr(8, length));
    data_ = all.substr(8 + length);
  }

  [[nodiscard]] std::vector<std::size_t> shape(const std::string& name) const {
    return header_.at(name).at("shape").get<std::vector<std::size_t>>();
  }

  [[nodiscard]] std::vector<std::uint8_t> bytes(const std::string& name) const {
    const auto range = header_.at(name).at("data_offsets").get<std::vector<std::size_t>>();
    return {data_.begin() + static_cast<std::ptrdiff_t>(range.at(0)),
            data_.begin() + static_cast<std::ptrdiff_t>(range.at(1))};
  }

  // A BF16 or F32 tensor.
  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    const std::vector<std::uint8_t> stored = bytes(name);
    if (header_.at(name).at("dtype") == "F32") {
      std::vector<float> values(stored.size() / 4);
      std::memcpy(values.data(), stored.data(), stored.size());
      return values;
    }
    std::vector<float> values;
    for (std::size_t i = 0; i < stored.size(); i += 2) {
      const std::uint32_t high = stored[i] | static_cast<std::uint32_t>(stored[i + 1]) << 8;
      values.push_back(std::bit_cast<float>(high << 16));
    }
    return values;
  }

 private:
  nlohmann::json header_;
  std::string data_;
};

}  // namespace quantmill::test
