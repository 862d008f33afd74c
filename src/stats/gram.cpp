#include "stats/gram.h"

#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "stats/h5_reader.h"
#include "stats/schema.h"

namespace quantmill {
namespace {

void check_size(std::uint64_t size, std::uint64_t channels, const std::string& where) {
  if (size != lower_triangle_size(channels)) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: has {} values; the lower triangle of {} channels has {}",
                            where,
                            size,
                            channels,
                            lower_triangle_size(channels)));
  }
}

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
  check_size(gram.size(), channels, input.describe("gram"));
  check_values(gram, channels, input.describe("gram"));
  return gram;
}

std::vector<float> GramFile::sample(const std::string& name, std::uint64_t channels) const {
  const h5::Group input = opened_->inputs.open_group(encode_object_name(name));
  check_size(input.dataset_size<float>("gram"), channels, input.describe("gram"));
  std::vector<float> rows;
  for (const std::uint64_t row : {channels / 2, channels - 1}) {
    const std::vector<float> values =
        input.read_dataset<float>("gram", h5::Range{lower_triangle_size(row), row + 1});
    rows.insert(rows.end(), values.begin(), values.end());
  }
  return rows;
}

LowerTriangle merge_grams(const std::vector<GramPart>& parts,
                          const std::string& name,
                          std::uint64_t channels) {
  std::vector<double> sums(lower_triangle_size(channels), 0.0);
  double tokens = 0;
  for (const GramPart& part : parts) {
    const LowerTriangle gram = part.file->read(name, channels);
    tokens += static_cast<double>(part.tokens);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += static_cast<double>(part.tokens) * double{gram[i]};
    }
  }
  LowerTriangle merged;
  merged.reserve(sums.size());
  for (const double sum : sums) {
    merged.push_back(static_cast<float>(sum / tokens));
  }
  return merged;
}

}  // namespace quantmill
