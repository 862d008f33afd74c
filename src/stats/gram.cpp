#include "stats/gram.h"

#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "stats/h5.h"
#include "stats/schema.h"

namespace quantmill {
namespace {

void check_values(const LowerTriangle& gram, std::uint64_t channels, const std::string& where) {
  std::size_t at = 0;
  for (std::uint64_t row = 0; row < channels; ++row) {
    for (std::uint64_t col = 0; col <= row; ++col, ++at) {
      if (!std::isfinite(gram[at]) || (row == col && gram[at] < 0)) {
        throw Error(ErrorCode::kInput,
                    fmt::format("{}: channels {} and {} have {}; record the statistics again",
                                where,
                                row,
                                col,
                                gram[at]));
      }
    }
  }
}

}  // namespace

struct GramFile::Opened {
  explicit Opened(const std::filesystem::path& file)
      : reader(file), inputs(reader.root().open_group("inputs")) {}

  h5::Reader reader;
  h5::Group inputs;
};

GramFile::GramFile(const std::filesystem::path& file) : opened_(std::make_unique<Opened>(file)) {}

GramFile::~GramFile() = default;
GramFile::GramFile(GramFile&&) noexcept = default;
GramFile& GramFile::operator=(GramFile&&) noexcept = default;

LowerTriangle GramFile::read(const std::string& name, std::uint64_t channels) const {
  const h5::Group input = opened_->inputs.open_group(encode_object_name(name));
  LowerTriangle gram = input.read_dataset<float>("gram");
  if (gram.size() != lower_triangle_size(channels)) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: has {} values; the lower triangle of {} channels has {}",
                            input.describe("gram"),
                            gram.size(),
                            channels,
                            lower_triangle_size(channels)));
  }
  check_values(gram, channels, input.describe("gram"));
  return gram;
}

}  // namespace quantmill
