#pragma once

// Private to kernels/: what each backend implements. Shapes have been checked by dispatch.cpp.
// quantmill::reference defines the results; quantmill::cpu and quantmill::gpu give the same bytes
// faster.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/block_grid.h"
#include "kernels/compare.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/gptq.h"
#include "kernels/int4.h"
#include "kernels/int4_pack.h"
#include "kernels/magnitudes.h"
#include "kernels/matrix.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"
#include "kernels/scale.h"

namespace quantmill::reference {

std::optional<MatrixPosition> decode_to_float(DType dtype,
                                              std::span<const std::byte> stored,
                                              FloatMatrix out);
std::optional<MatrixPosition> encode_from_float(ConstFloatMatrix values,
                                                DType dtype,
                                                std::span<std::byte> stored);
void scale_matrix(FloatMatrix values, const MatrixFactors& factors);
void mx_quantize(const MxSpec& spec,
                 ConstFloatMatrix values,
                 std::span<std::uint8_t> packed,
                 std::span<std::uint8_t> scales,
                 std::span<const float> importance);
void mx_encode(ElementFormat element,
               ConstFloatMatrix values,
               std::span<const std::uint8_t> scales,
               std::span<std::uint8_t> packed);
void mx_dequantize(ElementFormat element,
                   std::span<const std::uint8_t> packed,
                   std::span<const std::uint8_t> scales,
                   FloatMatrix values);
void mx_error_curve(const MxSpec& spec,
                    ConstFloatMatrix values,
                    std::span<const float> importance,
                    ConstFloatMatrix candidates,
                    std::span<double> sums,
                    std::span<const double> row_weights);
void add_errors(ConstFloatMatrix got,
                ConstFloatMatrix want,
                ErrorSums& sums,
                std::span<const float> weights);
void add_magnitudes(ConstFloatMatrix values,
                    std::span<const float> weights,
                    const ColumnSums& columns,
                    std::span<double> row_squares);
void block_amax(ConstFloatMatrix values, const BlockGrid& grid, FloatMatrix amax);
std::optional<MatrixPosition> fp8_dequantize(std::span<const std::uint8_t> codes,
                                             ConstFloatMatrix scales,
                                             const BlockGrid& grid,
                                             FloatMatrix values);
void fp8_quantize(ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  const BlockGrid& grid,
                  std::span<std::uint8_t> codes);
void int_scales(const IntSpec& spec,
                ConstFloatMatrix values,
                float clip,
                FloatMatrix scales,
                std::span<std::int8_t> zero_points);
void int_search_scales(const IntSpec& spec,
                       ConstFloatMatrix values,
                       std::span<const float> importance,
                       FloatMatrix scales,
                       std::span<std::int8_t> zero_points);
void int_quantize(const IntSpec& spec,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  std::span<const std::int8_t> zero_points,
                  std::span<std::int8_t> codes);
std::optional<MatrixPosition> int_dequantize(std::span<const std::int8_t> codes,
                                             ConstFloatMatrix scales,
                                             std::span<const std::int8_t> zero_points,
                                             std::span<const std::uint32_t> column_groups,
                                             FloatMatrix values);
void int_pack_columns(const IntPacking& packing,
                      std::span<const std::int8_t> codes,
                      std::size_t rows,
                      std::size_t cols,
                      std::span<std::uint8_t> packed);
void int_unpack_columns(const IntPacking& packing,
                        std::span<const std::uint8_t> packed,
                        std::size_t rows,
                        std::size_t cols,
                        std::span<std::int8_t> codes);
void int_pack_rows(const IntPacking& packing,
                   std::span<const std::int8_t> codes,
                   std::size_t rows,
                   std::size_t cols,
                   std::span<std::uint8_t> packed);
void int_unpack_rows(const IntPacking& packing,
                     std::span<const std::uint8_t> packed,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> codes);
void nvfp4_block_scales(ConstFloatMatrix values,
                        GlobalScale global,
                        std::span<std::uint8_t> scales);
void nvfp4_search_scales(ConstFloatMatrix values,
                         GlobalScale global,
                         std::span<const float> importance,
                         std::span<std::uint8_t> scales);
void nvfp4_quantize(ConstFloatMatrix values,
                    std::span<const std::uint8_t> scales,
                    GlobalScale global,
                    std::span<std::uint8_t> packed);
std::optional<MatrixPosition> nvfp4_dequantize(std::span<const std::uint8_t> packed,
                                               std::span<const std::uint8_t> scales,
                                               GlobalScale global,
                                               FloatMatrix values);
void gptq_round(const RoundingGrid& grid,
                const ErrorFeedback& feedback,
                ConstFloatMatrix values,
                ConstFloatMatrix scales,
                std::span<const std::int8_t> zero_points,
                FloatMatrix rounded);

}  // namespace quantmill::reference

namespace quantmill::cpu {

std::optional<MatrixPosition> decode_to_float(Isa isa,
                                              DType dtype,
                                              std::span<const std::byte> stored,
                                              FloatMatrix out);
std::optional<MatrixPosition> encode_from_float(Isa isa,
                                                ConstFloatMatrix values,
                                                DType dtype,
                                                std::span<std::byte> stored);
void scale_matrix(Isa isa, FloatMatrix values, const MatrixFactors& factors);
void mx_quantize(Isa isa,
                 const MxSpec& spec,
                 ConstFloatMatrix values,
                 std::span<std::uint8_t> packed,
                 std::span<std::uint8_t> scales,
                 std::span<const float> importance);
void mx_dequantize(Isa isa,
                   ElementFormat element,
                   std::span<const std::uint8_t> packed,
                   std::span<const std::uint8_t> scales,
                   FloatMatrix values);
void mx_error_curve(Isa isa,
                    const MxSpec& spec,
                    ConstFloatMatrix values,
                    std::span<const float> importance,
                    ConstFloatMatrix candidates,
                    std::span<double> sums,
                    std::span<const double> row_weights);
void add_errors(Isa isa,
                ConstFloatMatrix got,
                ConstFloatMatrix want,
                ErrorSums& sums,
                std::span<const float> weights);
void add_magnitudes(Isa isa,
                    ConstFloatMatrix values,
                    std::span<const float> weights,
                    const ColumnSums& columns,
                    std::span<double> row_squares);
void block_amax(Isa isa, ConstFloatMatrix values, const BlockGrid& grid, FloatMatrix amax);
std::optional<MatrixPosition> fp8_dequantize(Isa isa,
                                             std::span<const std::uint8_t> codes,
                                             ConstFloatMatrix scales,
                                             const BlockGrid& grid,
                                             FloatMatrix values);
void fp8_quantize(Isa isa,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  const BlockGrid& grid,
                  std::span<std::uint8_t> codes);
void int_scales(Isa isa,
                const IntSpec& spec,
                ConstFloatMatrix values,
                float clip,
                FloatMatrix scales,
                std::span<std::int8_t> zero_points);
void int_search_scales(Isa isa,
                       const IntSpec& spec,
                       ConstFloatMatrix values,
                       std::span<const float> importance,
                       FloatMatrix scales,
                       std::span<std::int8_t> zero_points);
void int_quantize(Isa isa,
                  const IntSpec& spec,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  std::span<const std::int8_t> zero_points,
                  std::span<std::int8_t> codes);
std::optional<MatrixPosition> int_dequantize(Isa isa,
                                             std::span<const std::int8_t> codes,
                                             ConstFloatMatrix scales,
                                             std::span<const std::int8_t> zero_points,
                                             std::span<const std::uint32_t> column_groups,
                                             FloatMatrix values);
void int_pack_columns(Isa isa,
                      const IntPacking& packing,
                      std::span<const std::int8_t> codes,
                      std::size_t rows,
                      std::size_t cols,
                      std::span<std::uint8_t> packed);
void int_unpack_columns(Isa isa,
                        const IntPacking& packing,
                        std::span<const std::uint8_t> packed,
                        std::size_t rows,
                        std::size_t cols,
                        std::span<std::int8_t> codes);
void int_pack_rows(Isa isa,
                   const IntPacking& packing,
                   std::span<const std::int8_t> codes,
                   std::size_t rows,
                   std::size_t cols,
                   std::span<std::uint8_t> packed);
void int_unpack_rows(Isa isa,
                     const IntPacking& packing,
                     std::span<const std::uint8_t> packed,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> codes);
void nvfp4_block_scales(Isa isa,
                        ConstFloatMatrix values,
                        GlobalScale global,
                        std::span<std::uint8_t> scales);
void nvfp4_search_scales(Isa isa,
                         ConstFloatMatrix values,
                         GlobalScale global,
                         std::span<const float> importance,
                         std::span<std::uint8_t> scales);
void nvfp4_quantize(Isa isa,
                    ConstFloatMatrix values,
                    std::span<const std::uint8_t> scales,
                    GlobalScale global,
                    std::span<std::uint8_t> packed);
std::optional<MatrixPosition> nvfp4_dequantize(Isa isa,
                                               std::span<const std::uint8_t> packed,
                                               std::span<const std::uint8_t> scales,
                                               GlobalScale global,
                                               FloatMatrix values);
void gptq_round(Isa isa,
                const RoundingGrid& grid,
                const ErrorFeedback& feedback,
                ConstFloatMatrix values,
                ConstFloatMatrix scales,
                std::span<const std::int8_t> zero_points,
                FloatMatrix rounded);

}  // namespace quantmill::cpu

// On the device that the context names.
namespace quantmill::gpu {

std::optional<MatrixPosition> decode_to_float(const Context& context,
                                              DType dtype,
                                              std::span<const std::byte> stored,
                                              FloatMatrix out);
std::optional<MatrixPosition> encode_from_float(const Context& context,
                                                ConstFloatMatrix values,
                                                DType dtype,
                                                std::span<std::byte> stored);
void scale_matrix(const Context& context, FloatMatrix values, const MatrixFactors& factors);
void mx_quantize(const Context& context,
                 const MxSpec& spec,
                 ConstFloatMatrix values,
                 std::span<std::uint8_t> packed,
                 std::span<std::uint8_t> scales,
                 std::span<const float> importance);
void mx_encode(const Context& context,
               ElementFormat element,
               ConstFloatMatrix values,
               std::span<const std::uint8_t> scales,
               std::span<std::uint8_t> packed);
void mx_dequantize(const Context& context,
                   ElementFormat element,
                   std::span<const std::uint8_t> packed,
                   std::span<const std::uint8_t> scales,
                   FloatMatrix values);
void mx_error_curve(const Context& context,
                    const MxSpec& spec,
                    ConstFloatMatrix values,
                    std::span<const float> importance,
                    ConstFloatMatrix candidates,
                    std::span<double> sums,
                    std::span<const double> row_weights);
void add_errors(const Context& context,
                ConstFloatMatrix got,
                ConstFloatMatrix want,
                ErrorSums& sums,
                std::span<const float> weights);
void add_magnitudes(const Context& context,
                    ConstFloatMatrix values,
                    std::span<const float> weights,
                    const ColumnSums& columns,
                    std::span<double> row_squares);
void block_amax(const Context& context,
                ConstFloatMatrix values,
                const BlockGrid& grid,
                FloatMatrix amax);
std::optional<MatrixPosition> fp8_dequantize(const Context& context,
                                             std::span<const std::uint8_t> codes,
                                             ConstFloatMatrix scales,
                                             const BlockGrid& grid,
                                             FloatMatrix values);
void fp8_quantize(const Context& context,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  const BlockGrid& grid,
                  std::span<std::uint8_t> codes);
void int_scales(const Context& context,
                const IntSpec& spec,
                ConstFloatMatrix values,
                float clip,
                FloatMatrix scales,
                std::span<std::int8_t> zero_points);
void int_search_scales(const Context& context,
                       const IntSpec& spec,
                       ConstFloatMatrix values,
                       std::span<const float> importance,
                       FloatMatrix scales,
                       std::span<std::int8_t> zero_points);
void int_quantize(const Context& context,
                  const IntSpec& spec,
                  ConstFloatMatrix values,
                  ConstFloatMatrix scales,
                  std::span<const std::int8_t> zero_points,
                  std::span<std::int8_t> codes);
std::optional<MatrixPosition> int_dequantize(const Context& context,
                                             std::span<const std::int8_t> codes,
                                             ConstFloatMatrix scales,
                                             std::span<const std::int8_t> zero_points,
                                             std::span<const std::uint32_t> column_groups,
                                             FloatMatrix values);
void int_pack_columns(const Context& context,
                      const IntPacking& packing,
                      std::span<const std::int8_t> codes,
                      std::size_t rows,
                      std::size_t cols,
                      std::span<std::uint8_t> packed);
void int_unpack_columns(const Context& context,
                        const IntPacking& packing,
                        std::span<const std::uint8_t> packed,
                        std::size_t rows,
                        std::size_t cols,
                        std::span<std::int8_t> codes);
void int_pack_rows(const Context& context,
                   const IntPacking& packing,
                   std::span<const std::int8_t> codes,
                   std::size_t rows,
                   std::size_t cols,
                   std::span<std::uint8_t> packed);
void int_unpack_rows(const Context& context,
                     const IntPacking& packing,
                     std::span<const std::uint8_t> packed,
                     std::size_t rows,
                     std::size_t cols,
                     std::span<std::int8_t> codes);
void nvfp4_block_scales(const Context& context,
                        ConstFloatMatrix values,
                        GlobalScale global,
                        std::span<std::uint8_t> scales);
void nvfp4_search_scales(const Context& context,
                         ConstFloatMatrix values,
                         GlobalScale global,
                         std::span<const float> importance,
                         std::span<std::uint8_t> scales);
void nvfp4_quantize(const Context& context,
                    ConstFloatMatrix values,
                    std::span<const std::uint8_t> scales,
                    GlobalScale global,
                    std::span<std::uint8_t> packed);
std::optional<MatrixPosition> nvfp4_dequantize(const Context& context,
                                               std::span<const std::uint8_t> packed,
                                               std::span<const std::uint8_t> scales,
                                               GlobalScale global,
                                               FloatMatrix values);
void gptq_round(const Context& context,
                const RoundingGrid& grid,
                const ErrorFeedback& feedback,
                ConstFloatMatrix values,
                ConstFloatMatrix scales,
                std::span<const std::int8_t> zero_points,
                FloatMatrix rounded);

}  // namespace quantmill::gpu
