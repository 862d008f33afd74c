#pragma once

// Makes the bytes of output tensors: read, decode, fold, quantize. Used to write a checkpoint and
// to verify one.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "kernels/compare.h"
#include "pipeline/fold_table.h"
#include "pipeline/scheme_codec.h"
#include "pipeline/weight_reader.h"
#include "plan/column_importance.h"
#include "plan/plan.h"

namespace quantmill {

// Receives finished bytes: they belong at `file_offset` of output shard `shard`.
using Emit = std::function<void(
    std::size_t shard, std::uint64_t file_offset, std::span<const std::byte> bytes)>;

// One worker's buffers. Not thread-safe: one per thread.
class RowProducer {
 public:
  // buffer_bytes bounds what is held at a time (at least one row is). `importance`: of the source's
  // columns, for ScaleRule::kMse; may be empty.
  RowProducer(const Context& context,
              const Checkpoint& checkpoint,
              const Plan& plan,
              const std::vector<ActivationFold>& folds,
              const ColumnImportance& importance,
              std::uint64_t buffer_bytes);

  // Produces one task and emits it in ascending order. For kQuantize, `errors` receives the error
  // of the quantized values against the folded ones. Errors, kInput: NaN or infinity in a weight
  // that is folded or quantized (tensor, row, column); a fold that leaves the range of the stored
  // type. kIo.
  void produce(const WriteTask& task, const Emit& emit, ErrorSums& errors);

  // Bytes that a worker needs for the widest row of the plan.
  static std::uint64_t smallest_buffer_bytes(const Plan& plan);

 private:
  void copy(const WriteTask& task, const Emit& emit);
  void fold_norm_weight(const WriteTask& task, const Emit& emit);
  void fold_rows(const WriteTask& task, const Emit& emit, ErrorSums& errors);
  // Fills encoded_parts_ with rows [begin, end).
  void encode(const TensorWork& work, std::uint64_t begin, std::uint64_t end, ErrorSums& errors);
  void load(const TensorWork& work, std::uint64_t begin, std::uint64_t rows);
  void decode(const TensorWork& work, std::uint64_t begin, std::uint64_t first, FloatMatrix values);
  void store(const TensorWork& work,
             std::uint64_t first_row,
             ConstFloatMatrix values,
             std::span<std::byte> stored);
  // Fills factors_ and folded_importance_ for the tensor that is worked on.
  void choose_factors(const TensorWork& work);
  // Scales rows of a matrix, the first of which is `first_row`, as the plan says.
  void fold(const TensorWork& work, std::uint64_t first_row, FloatMatrix values);
  void round_to_bf16(FloatMatrix values);

  const Context& context_;
  const Checkpoint& checkpoint_;
  const Plan& plan_;
  const std::vector<ActivationFold>& folds_;
  const ColumnImportance& importance_;
  std::uint64_t buffer_bytes_;
  WeightReader reader_;
  std::map<Scheme, SchemeCodec> codecs_;   // of what is quantized
  std::optional<std::size_t> factors_of_;  // the tensor that factors_ are for
  TensorFactors factors_;
  std::vector<float> folded_importance_;  // of the columns as they are quantized
  std::vector<float> row_divisors_;       // of the rows that are worked on
  std::vector<std::byte> stored_;         // as read, of what the reader does not hold
  std::vector<float> values_;             // decoded and folded
  std::vector<float> restored_;           // what the codes stand for
  std::vector<std::byte> rounded_;        // Compat::kSeed: values on their way through BF16
  std::vector<std::byte> encoded_;        // a norm's output bytes
  std::vector<std::vector<std::byte>> encoded_parts_;
};

}  // namespace quantmill
