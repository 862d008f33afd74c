#pragma once

// Makes the bytes of output tensors: read, decode, fold, quantize. Used to write a checkpoint and
// to verify one.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "device/work_buffer.h"
#include "kernels/compare.h"
#include "pipeline/arranged.h"
#include "pipeline/coded_rows.h"
#include "pipeline/feedback_factors.h"
#include "pipeline/fold_table.h"
#include "pipeline/scheme_codec.h"
#include "pipeline/weight_reader.h"
#include "plan/column_importance.h"
#include "plan/plan.h"

namespace quantmill {

// What scales of whole tensors are made from, one value per Plan::tensors (measure_weights,
// largest_inputs).
struct TensorRanges {
  std::vector<float> weights;
  std::vector<float> inputs;
  std::vector<float> carried;  // of whole tensors, as stored (carried_scales)
};

// Of quantized values against the folded ones.
struct WorkErrors {
  ErrorSums plain;
  ErrorSums weighted;  // by what the columns are multiplied by; 0 where that is not known
};

// One worker's buffers. Not thread-safe: one per thread.
class RowProducer {
 public:
  // buffer_bytes bounds what is held at a time (at least one row is). For measure() no ranges are
  // needed. `importance`: of the source's columns, for ScaleRule::kMse and weighted errors; may be
  // empty. `feedback`:
  // of Rounding::kGptq, null otherwise; shared by workers.
  RowProducer(const Context& context,
              const Checkpoint& checkpoint,
              const Plan& plan,
              const std::vector<ActivationFold>& folds,
              TensorRanges ranges,
              const ColumnImportance& importance,
              FeedbackFactors* feedback,
              std::uint64_t buffer_bytes);

  // Produces one task and emits it, each stored tensor in ascending order unless its elements are
  // arranged anew. For kQuantize, `errors` receives the error
  // of the quantized values against the folded ones. Errors, kInput: NaN or infinity in a weight
  // that is folded or quantized (tensor, row, column); a fold that leaves the range of the stored
  // type. kIo.
  void produce(const WriteTask& task, const Emit& emit, WorkErrors& errors);

  // Tells the system which bytes produce() or measure() of a task will read (File::expect_read):
  // those of linears' rows. Thread-safe.
  void expect(const WriteTask& task) const;

  // The largest magnitude among the folded values of a kQuantize task. Errors as produce.
  float measure(const WriteTask& task);

  // Bytes that a worker needs for the widest row of the plan.
  static std::uint64_t smallest_buffer_bytes(const Plan& plan);

  // What a worker has a use for: more does not make reading faster, but what is turned is written
  // in longer pieces.
  static std::uint64_t largest_buffer_bytes(const Plan& plan);

  // What a worker with such buffers comes to hold at most.
  static std::uint64_t held_bytes(const Plan& plan, std::uint64_t buffer_bytes);

 private:
  void copy(const WriteTask& task, const Emit& emit);
  void write_kv_scale(const WriteTask& task, const Emit& emit);
  void rearrange(const WriteTask& task, const Emit& emit);
  void fold_norm_weight(const WriteTask& task, const Emit& emit);
  void fold_rows(const WriteTask& task, const Emit& emit, WorkErrors& errors);
  void give_back();
  void produce_held(const WriteTask& task, const Emit& emit, WorkErrors& errors);
  float measure_held(const WriteTask& task);
  // Rows that are decoded, folded and quantized at a time, a multiple of `together`, and at least
  // that.
  [[nodiscard]] std::uint64_t rows_worked(const TensorWork& work, std::uint64_t together) const;
  // Rows of a work that fit into the buffers.
  [[nodiscard]] std::uint64_t rows_held(const TensorWork& work) const;
  static void emit_part(const OutputPlace& place,
                        std::uint64_t begin,
                        std::span<const std::byte> bytes,
                        const Emit& emit);
  // Whether the codes of a tensor are carried over as they are stored.
  [[nodiscard]] bool carries(const TensorWork& work) const;
  // Fills encoded_parts_ with loaded rows of which that is so.
  void copy_rows(const TensorWork& work, std::uint64_t begin, std::uint64_t rows);
  void copy_codes(const TensorWork& work,
                  std::uint64_t begin,
                  std::uint64_t rows,
                  std::span<const std::span<std::byte>> parts);
  void copy_integers(const TensorWork& work,
                     std::uint64_t begin,
                     std::uint64_t rows,
                     std::span<const std::span<std::byte>> parts);
  void check_decoded(const TensorWork& work, std::uint64_t begin, std::uint64_t rows);
  // Fills the parts that are not of rows: the shape, the scale of inputs.
  void write_beside(const TensorWork& work, std::span<const std::span<std::byte>> parts) const;
  // Fills encoded_parts_ with rows [begin, end).
  void encode(const TensorWork& work, std::uint64_t begin, std::uint64_t end, WorkErrors& errors);
  // Fills the parts with what rows of folded values are quantized to.
  void quantize(const TensorWork& work,
                ConstFloatMatrix values,
                std::span<const std::span<std::byte>> parts,
                WorkErrors& errors);
  void load(const TensorWork& work, std::uint64_t begin, std::uint64_t rows);
  void decode(const TensorWork& work, std::uint64_t begin, std::uint64_t first, FloatMatrix values);
  void store(const TensorWork& work,
             std::uint64_t first_row,
             ConstFloatMatrix values,
             std::span<std::byte> stored);
  // Emits rows [begin, end), the elements of which are `elements`, or of codes those of coded_.
  void arrange(const TensorWork& work,
               std::uint64_t begin,
               std::uint64_t end,
               std::span<const std::byte> elements,
               const Emit& emit);
  void arrange_codes(const TensorWork& work,
                     const ArrangedTarget& target,
                     std::uint64_t begin,
                     const PartRange& range,
                     const Emit& emit);
  void check_codes(const TensorWork& work, std::uint64_t begin) const;
  // Fills factors_ and folded_importance_ for the tensor that is worked on.
  void choose_factors(const TensorWork& work);
  // Scales rows of a matrix, the first of which is `first_row`, as the plan says.
  void fold(const TensorWork& work, std::uint64_t first_row, FloatMatrix values);
  void round_to_bf16(FloatMatrix values);

  const Context& context_;
  const Checkpoint& checkpoint_;
  const Plan& plan_;
  const std::vector<ActivationFold>& folds_;
  TensorRanges ranges_;
  const ColumnImportance& importance_;
  FeedbackFactors* feedback_;
  std::uint64_t buffer_bytes_;
  WeightReader reader_;
  std::map<Scheme, SchemeCodec> codecs_;   // of what is quantized
  std::optional<std::size_t> factors_of_;  // the tensor that factors_ are for
  TensorFactors factors_;
  std::vector<float> folded_importance_;                 // of the columns as they are quantized
  std::shared_ptr<const ErrorFeedback> error_feedback_;  // of the tensor, where it is worked on
  std::vector<float> row_divisors_;                      // of the rows that are worked on
  std::vector<std::byte> stored_;   // as read, of what the reader does not hold
  WorkBuffer<float> values_;        // decoded and folded
  WorkBuffer<float> restored_;      // what the codes stand for
  WorkBuffer<std::byte> rounded_;   // Compat::kSeed: values on their way through BF16
  std::vector<std::byte> encoded_;  // a norm's output bytes
  std::vector<std::vector<std::byte>> encoded_parts_;
  CodedRows coded_;                // codes on their way to where they are arranged
  std::vector<std::byte> turned_;  // elements that are
  std::vector<float> block_scales_;
};

}  // namespace quantmill
