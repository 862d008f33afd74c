#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "pipeline/produce.h"

namespace quantmill {

bool RowProducer::carries(const TensorWork& work) const {
  if (!work.copies_codes || !has_tensor_scale(work.scheme) || !work.targets.empty()) {
    return work.copies_codes;
  }
  const auto index = static_cast<std::size_t>(&work - plan_.tensors.data());
  return !ranges_.carried.empty() && ranges_.carried[index] > 0;
}

void RowProducer::copy_rows(const TensorWork& work, std::uint64_t begin, std::uint64_t rows) {
  const std::vector<std::span<std::byte>> parts(
      encoded_parts_.begin(),
      encoded_parts_.begin() + static_cast<std::ptrdiff_t>(work.parts.size()));
  const SourceWeight& source =
      plan_.architecture.weights[plan_.architecture.tensors[work.tensor].stored];
  if (is_integer(source.encoding)) {
    copy_integers(work, begin, rows, parts);
  } else {
    copy_codes(work, begin, rows, parts);
  }
  write_beside(work, parts);
}

void RowProducer::copy_codes(const TensorWork& work,
                             std::uint64_t begin,
                             std::uint64_t rows,
                             std::span<const std::span<std::byte>> parts) {
  const std::span<const std::byte> codes = reader_.stored_codes();
  const std::span<const std::byte> bytes = reader_.stored_scales();
  check_invariant(parts[0].size() == codes.size(), "codes of another size");
  copy_bytes(parts[0].data(), codes.data(), codes.size());
  if (is_mx(work.scheme) || work.scheme == Scheme::kNvfp4) {
    check_invariant(parts[1].size() == bytes.size(), "scales of another size");
    copy_bytes(parts[1].data(), bytes.data(), bytes.size());
  }
  if (is_mx(work.scheme)) {
    return;
  }
  check_decoded(work, begin, rows);
  if (has_tensor_scale(work.scheme)) {
    const auto index = static_cast<std::size_t>(&work - plan_.tensors.data());
    const std::span<std::byte> whole = parts[work.scheme == Scheme::kNvfp4 ? 2 : 1];
    copy_bytes(whole.data(), &ranges_.carried[index], whole.size());
    return;
  }
  const std::size_t of_row = reader_.scales().size() / rows;
  std::span<std::byte> out = parts[1];
  for (std::uint64_t row = 0; row < rows; row += work.parts[1].weight_rows) {
    const auto scales = std::as_bytes(reader_.scales().subspan(row * of_row, of_row));
    copy_bytes(out.data(), scales.data(), scales.size());
    out = out.subspan(scales.size());
  }
}

void RowProducer::copy(const WriteTask& task, const Emit& emit) {
  const TensorWork& work = plan_.tensors[task.tensor];
  const std::uint64_t piece = std::max<std::uint64_t>(1, buffer_bytes_);
  for (std::uint64_t begin = task.begin; begin < task.end; begin += piece) {
    stored_.resize(std::min(piece, task.end - begin));
    read_stored(
        checkpoint_, plan_.architecture, plan_.architecture.tensors[work.tensor], begin, stored_);
    emit(work.parts[0].shard, work.parts[0].file_offset + begin, stored_);
  }
}

// Refuses what is no number.
void RowProducer::check_decoded(const TensorWork& work, std::uint64_t begin, std::uint64_t rows) {
  constexpr std::uint64_t kElements = std::uint64_t{1} << 15;
  const std::uint64_t held = std::max<std::uint64_t>(1, kElements / work.cols);
  for (std::uint64_t row = 0; row < rows; row += held) {
    values_.resize(std::min(held, rows - row) * work.cols);
    decode(work, begin, row, {values_.data(), values_.size() / work.cols, work.cols});
  }
}

void RowProducer::copy_integers(const TensorWork& work,
                                std::uint64_t begin,
                                std::uint64_t rows,
                                std::span<const std::span<std::byte>> parts) {
  coded_.rows = rows;
  coded_.cols = work.cols;
  reader_.code(coded_);
  if (!is_asymmetric(work.scheme)) {
    const auto other = std::ranges::find_if(coded_.zero_points,
                                            [](std::int8_t zero_point) { return zero_point != 0; });
    if (other != coded_.zero_points.end()) {
      throw Error(
          ErrorCode::kInput,
          fmt::format("tensor {}: row {} has a zero point of {}, but config.json says that "
                      "its integers are symmetric; the checkpoint is damaged",
                      work.name,
                      begin + static_cast<std::uint64_t>(other - coded_.zero_points.begin()) /
                                  coded_.groups,
                      static_cast<int>(*other)));
    }
  }
  codecs_.at(work.scheme).store(coded_, parts);
}

}  // namespace quantmill
