#pragma once

// Reads a linear row by row as the model sees it, [out, in], however it is stored: a slice of a
// larger tensor, transposed, rows that lie apart, codes with scales.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "kernels/matrix.h"
#include "pipeline/coded_rows.h"
#include "plan/architecture.h"

namespace quantmill {

// All rows of a linear.
RowRange all_rows(const ModelTensor& tensor);

// Bytes of a plain tensor or slice as they are stored, from byte `begin` of it. kIo.
void read_stored(const Checkpoint& checkpoint,
                 const ResolvedArchitecture& architecture,
                 const ModelTensor& tensor,
                 std::uint64_t begin,
                 std::span<std::byte> bytes);

// Holds the rows that are worked on. Not thread-safe: one per thread.
class WeightReader {
 public:
  // The arguments must outlive it.
  WeightReader(const Context& context,
               const Checkpoint& checkpoint,
               const ResolvedArchitecture& architecture);

  // Reads these rows of `tensor`, which ascend. Rows of a linear that is stored transposed take one
  // read per column. kIo; kInput for a scale that is no number.
  void load(const ModelTensor& tensor, std::span<const std::uint64_t> rows);

  // As above: number begin to begin + count - 1 of `rows`.
  void load(const ModelTensor& tensor,
            const RowRange& rows,
            std::uint64_t begin,
            std::uint64_t count);

  // Tells the system that rows number begin to begin + count - 1 of `rows` will be loaded soon
  // (File::expect_read); nothing where they are not stored one after the other. Thread-safe.
  void expect(const ModelTensor& tensor,
              const RowRange& rows,
              std::uint64_t begin,
              std::uint64_t count) const;

  // Reads rows [begin, begin + count) of a weight that is not plain as it is stored: of one that is
  // stored as [in, out], the inputs. kIo; kInput as load().
  void load_stored(const ModelTensor& tensor, std::uint64_t begin, std::uint64_t count);

  // Loaded rows from number `first`, as many as `out` has, as floats; out.cols is in_features(),
  // and after load_stored() the second dimension. Exact for plain weights and MX; otherwise code
  // times scale, rounded to float once. Returns the first NaN or infinity in row order, if there is
  // one.
  [[nodiscard]] std::optional<MatrixPosition> decode(std::uint64_t first, FloatMatrix out) const;

  // The loaded rows of a quantized weight, code by code; rows.rows and rows.cols are set. kInput
  // for columns that are in groups of their own order.
  void code(CodedRows& rows) const;

  // The loaded rows as they are stored, for a copy of codes.
  [[nodiscard]] std::span<const std::byte> stored_codes() const { return codes_; }

  [[nodiscard]] std::span<const std::byte> stored_scales() const { return scale_bytes_; }

  // [loaded rows, scales of a row], where they are not MX's bytes.
  [[nodiscard]] std::span<const float> scales() const { return scales_; }

  // What a row of a weight takes while it is loaded.
  static std::uint64_t loaded_row_bytes(const SourceWeight& weight, std::uint64_t cols);

 private:
  void choose(const ModelTensor& tensor);
  void load_codes(std::span<const std::uint64_t> rows);
  void load_columns(std::span<const std::uint64_t> rows);
  void load_scales(std::span<const std::uint64_t> rows);
  void load_zero_points();
  void load_turned_integers(std::span<const std::uint64_t> rows);
  void unpack(std::span<const std::uint64_t> rows);
  void load_global_scale();
  [[nodiscard]] std::vector<float> decode_scales(DType dtype,
                                                 std::span<const std::byte> bytes,
                                                 const std::string& name) const;

  const Context& context_;
  const Checkpoint& checkpoint_;
  const ResolvedArchitecture& architecture_;
  const ModelTensor* tensor_ = nullptr;
  const SourceWeight* weight_ = nullptr;
  std::vector<std::byte> codes_;          // [rows, bytes of a row]
  std::vector<std::byte> scale_bytes_;    // [rows, bytes of a row's scales]
  std::vector<float> scales_;             // [rows, scales of a row], where they are no bytes of MX
  std::vector<std::int8_t> integers_;     // codes, one a byte
  std::vector<std::int8_t> zero_points_;  // [rows, scales of a row], or none
  std::vector<std::int8_t> all_zero_points_;  // of the whole weight
  std::vector<float> values_;  // of load_stored() where the codes are turned; else empty
  std::vector<std::uint32_t> column_groups_;  // of the columns, where they are not side by side
  float global_scale_ = 1;
};

}  // namespace quantmill
