#include "tiny_checkpoint.h"

#include <bit>
#include <fstream>
#include <iterator>
#include <sstream>

namespace quantmill::test {

TinyTensor bf16_tensor(std::string name,
                       std::vector<std::uint64_t> shape,
                       const std::vector<float>& values) {
  TinyTensor tensor{std::move(name), "BF16", std::move(shape), {}};
  for (const float value : values) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) >> 16;
    tensor.bytes.push_back(static_cast<std::byte>(bits & 0xff));
    tensor.bytes.push_back(static_cast<std::byte>(bits >> 8));
  }
  return tensor;
}

void write_tiny_safetensors(const std::filesystem::path& file,
                            const std::vector<TinyTensor>& tensors) {
  std::ostringstream json;
  std::string data;
  json << R"({"__metadata__":{"format":"pt"})";
  for (const TinyTensor& tensor : tensors) {
    json << ",\"" << tensor.name << R"(":{"dtype":")" << tensor.dtype << R"(","shape":[)";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      json << (i == 0 ? "" : ",") << tensor.shape[i];
    }
    json << "],\"data_offsets\":[" << data.size() << ',' << data.size() + tensor.bytes.size()
         << "]}";
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  json << '}';
  write_raw_safetensors(file, json.str(), data);
}

void write_raw_safetensors(const std::filesystem::path& file,
                           const std::string& json,
                           const std::string& data) {
  const std::uint64_t length = json.size();
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << json << data;
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace quantmill::test
