#pragma once

// Second moments of recorded inputs across channels: the Gram matrix X^T X / tokens, the Hessian of
// a linear's squared error (GPTQ). Kept in the file of the statistics and read one at a time: that
// of 17,408 channels has 606 MB.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace quantmill {

// The lower triangle of a symmetric matrix, row by row: (0,0), (1,0), (1,1), (2,0) …
using LowerTriangle = std::vector<float>;

constexpr std::uint64_t lower_triangle_size(std::uint64_t channels) {
  return channels * (channels + 1) / 2;
}

// The matrices of one HDF5 file (store.h). Not thread-safe.
class GramFile {
 public:
  // Errors: as read_statistics.
  explicit GramFile(const std::filesystem::path& file);
  ~GramFile();
  GramFile(const GramFile&) = delete;
  GramFile& operator=(const GramFile&) = delete;
  GramFile(GramFile&& other) noexcept;
  GramFile& operator=(GramFile&& other) noexcept;

  // Of an input whose gram_tokens is not 0. kInput naming file and input: it is missing, of another
  // size than `channels` asks for, or holds NaN, infinity or a negative value on its diagonal.
  [[nodiscard]] LowerTriangle read(const std::string& name, std::uint64_t channels) const;

  // Its middle and its last row: means of products of two channels with half of all and with all
  // of them. Every token that the matrix is of has a part in every value, so another matrix is seen
  // by 1.5 `channels` values of it, unless both channels are dead. NaN and the like are not looked
  // for. Errors: as read, for a missing matrix and its size.
  [[nodiscard]] std::vector<float> sample(const std::string& name, std::uint64_t channels) const;

 private:
  struct Opened;
  std::unique_ptr<Opened> opened_;
};

// The matrix of an input in several files, each weighted by its tokens: that of all tokens
// together. Errors: as GramFile::read.
struct GramPart {
  const GramFile* file = nullptr;
  std::uint64_t tokens = 0;
};

LowerTriangle merge_grams(const std::vector<GramPart>& parts,
                          const std::string& name,
                          std::uint64_t channels);

}  // namespace quantmill
