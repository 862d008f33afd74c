// Weights of any finite values in every scheme: the cpu backend, on the best instruction set of
// this machine and on none, stores what the reference does; rows in two pieces are stored as the
// whole; and codes stand for the same values when they are unpacked by another way. Input: a byte
// each for the scheme, options, columns and the cut, then BF16 values.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "fuzz.h"
#include "kernels/codec.h"
#include "kernels/convert.h"
#include "pipeline/coded_rows.h"
#include "pipeline/scheme_codec.h"
#include "tests/fuzz/backends.h"

namespace quantmill {
namespace {

constexpr std::array kSchemes = {Scheme::kMxfp4,
                                 Scheme::kMxfp6E2m3,
                                 Scheme::kMxfp6E3m2,
                                 Scheme::kMxfp8,
                                 Scheme::kNvfp4,
                                 Scheme::kInt8,
                                 Scheme::kFp8Tensor,
                                 Scheme::kFp8Channel,
                                 Scheme::kFp8Block,
                                 Scheme::kW8a16,
                                 Scheme::kInt4G32,
                                 Scheme::kW8a16G128,
                                 Scheme::kInt4AsymG32,
                                 Scheme::kInt4G128,
                                 Scheme::kInt4AsymG128};
constexpr std::size_t kMostRows = 300;

using Parts = std::vector<std::vector<std::byte>>;

struct Subject {
  Scheme scheme = Scheme::kMxfp4;
  Recipe recipe;
  std::vector<float> values;
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::vector<float> importance;
  ErrorFeedback feedback;
  bool feeds_back = false;

  [[nodiscard]] std::vector<StoredPart> stored(std::size_t num_rows) const {
    return stored_parts(scheme, recipe.layout, "w.weight", num_rows, cols, false);
  }

  [[nodiscard]] float largest() const {
    return std::accumulate(values.begin(), values.end(), 0.0F, [](float most, float value) {
      return std::max(most, std::fabs(value));
    });
  }
};

std::vector<std::span<std::byte>> spans_of(Parts& parts) {
  return {parts.begin(), parts.end()};
}

// One scale or shape for all rows.
bool is_of_whole_weight(const Subject& subject, const StoredPart& part) {
  return part.kind == PartKind::kTensorScale || part.kind == PartKind::kShape ||
         (part.kind == PartKind::kScales && subject.scheme == Scheme::kFp8Tensor);
}

// Rows [begin, end), and what their codes stand for.
Parts encode(const Context& context,
             const Subject& subject,
             std::size_t begin,
             std::size_t end,
             std::span<float> decoded) {
  Parts parts;
  for (const StoredPart& part : subject.stored(end - begin)) {
    const std::size_t elements =
        std::accumulate(part.shape.begin(), part.shape.end(), std::size_t{1}, std::multiplies<>());
    const bool is_left_out = begin > 0 && is_of_whole_weight(subject, part);
    parts.emplace_back(is_left_out ? 0 : elements * dtype_bits(part.dtype) / 8);
  }
  SchemeCodec codec(context, subject.scheme, subject.recipe);
  codec.set_tensor_largest(subject.largest());
  const std::vector<std::span<std::byte>> spans = spans_of(parts);
  codec.encode({subject.values.data() + begin * subject.cols, end - begin, subject.cols},
               spans,
               subject.importance,
               subject.feeds_back ? &subject.feedback : nullptr);
  codec.decode(spans, {decoded.data(), end - begin, subject.cols});
  return parts;
}

bool are_same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

void check_pieces(const Subject& subject, std::size_t cut, const Parts& whole) {
  const Context context{Backend::kCpu, best_isa()};
  std::vector<float> decoded(subject.values.size());
  const Parts above = encode(context, subject, 0, cut, decoded);
  const Parts below = encode(context, subject, cut, subject.rows, decoded);
  const std::vector<StoredPart> stored = subject.stored(subject.rows);
  for (std::size_t part = 0; part < stored.size(); ++part) {
    if (stored[part].kind == PartKind::kShape) {
      continue;
    }
    std::vector<std::byte> together = above[part];
    together.insert(together.end(), below[part].begin(), below[part].end());
    fuzz::require(together == whole[part], "pieces are stored as the whole");
  }
}

void check_unpacked(const Context& context,
                    const Subject& subject,
                    Parts& parts,
                    std::span<const float> decoded) {
  CodedRows rows;
  rows.rows = subject.rows;
  rows.cols = subject.cols;
  const std::vector<std::span<std::byte>> spans = spans_of(parts);
  const std::vector<std::span<const std::byte>> read(spans.begin(), spans.end());
  unpack_scheme(context, subject.scheme, subject.largest(), read, rows);
  const bool is_integer = !is_mx(subject.scheme) && subject.scheme != Scheme::kNvfp4 &&
                          subject.scheme != Scheme::kFp8Block &&
                          subject.scheme != Scheme::kFp8Channel &&
                          subject.scheme != Scheme::kFp8Tensor;
  for (std::size_t index = 0; index < decoded.size(); ++index) {
    const std::size_t group = index / rows.cols * rows.groups + index % rows.cols / rows.group;
    const auto byte = static_cast<std::uint8_t>(rows.codes[index]);
    const float code = is_integer ? static_cast<float>(static_cast<std::int8_t>(byte))
                                  : decode_element(ElementFormat::kE4m3, byte);
    const float zero = rows.zero_points.empty() ? 0.0F : rows.zero_points[group];
    fuzz::require((code - zero) * rows.scales[group] == decoded[index],
                  "unpacked codes stand for what is decoded");
  }
}

void check(const Subject& subject, std::size_t cut) {
  const Context reference{Backend::kReference, Isa::kPlain};
  std::vector<float> wanted(subject.values.size());
  Parts parts = encode(reference, subject, 0, subject.rows, wanted);
  for (const Context& context : fuzz::compared_backends()) {
    std::vector<float> decoded(wanted.size());
    const Parts got = encode(context, subject, 0, subject.rows, decoded);
    fuzz::require(got == parts, "the backends store the same bytes");
    fuzz::require(are_same(decoded, wanted), "the backends decode the same values");
  }
  check_unpacked(reference, subject, parts, wanted);
  const std::size_t step = rows_together(subject.scheme);
  cut = subject.rows == 0 ? 0 : cut % (subject.rows / step + 1) * step;
  if (cut > 0 && cut < subject.rows) {
    check_pieces(subject, cut, parts);
  }
}

// Finite values whose codes' products with scales stay finite too.
std::vector<float> values_of(std::span<const std::byte> stored) {
  std::vector<float> values(stored.size() / 2);
  (void)decode_to_float({}, DType::kBf16, stored, {values.data(), 1, values.size()});
  for (float& value : values) {
    if (!(std::fabs(value) < 0x1p100F)) {
      value = 0;
    }
  }
  return values;
}

void add_feedback(Subject& subject) {
  subject.feeds_back = true;
  subject.feedback.order.resize(subject.cols);
  subject.feedback.factors.resize(subject.cols * subject.cols);
  for (std::size_t a = 0; a < subject.cols; ++a) {
    subject.feedback.order[a] = static_cast<std::uint32_t>(a * 5 % subject.cols);
    for (std::size_t b = 0; b < a; ++b) {
      subject.feedback.factors[a * subject.cols + b] = 0.01F * static_cast<float>((a + 3 * b) % 7);
    }
  }
}

}  // namespace
}  // namespace quantmill

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  constexpr std::size_t kHead = 4;
  if (size < kHead) {
    return 0;
  }
  constexpr std::array kRules = {
      ScaleRule::kEven, ScaleRule::kFloor, ScaleRule::kMse, ScaleRule::kCeil};
  Subject subject;
  subject.scheme = kSchemes.at(data[0] % kSchemes.size());
  subject.recipe.layout = default_layout(subject.scheme);
  subject.recipe.scale_rule = kRules.at(data[1] & 3);
  const std::size_t columns = std::max<std::size_t>(16, columns_together(subject.scheme));
  subject.cols = columns * (1 + data[2] % (columns > 32 ? 1U : 3U));
  subject.rows = std::min(kMostRows, (size - kHead) / (2 * subject.cols));
  const std::size_t bytes = 2 * subject.rows * subject.cols;
  subject.values = values_of(std::as_bytes(std::span(data + kHead, bytes)));
  if ((data[1] & 4) != 0) {
    for (std::size_t c = 0; c < subject.cols; ++c) {
      subject.importance.push_back(0.1F * static_cast<float>(c % 13));
    }
  }
  if ((data[1] & 24) == 24 && takes_feedback(subject.scheme)) {
    add_feedback(subject);
  }
  check(subject, data[3]);
  return 0;
}
