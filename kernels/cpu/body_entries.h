#pragma once

// Private to kernels/cpu, included by isa_*.cpp only: the table of entries for vectors of W lanes.

#include "kernels/cpu/body_float.h"
#include "kernels/cpu/body_fp8.h"
#include "kernels/cpu/body_gptq.h"
#include "kernels/cpu/body_int.h"
#include "kernels/cpu/body_int_pack.h"
#include "kernels/cpu/body_magnitudes.h"
#include "kernels/cpu/body_mx.h"
#include "kernels/cpu/body_nvfp4.h"

namespace quantmill::cpu {
namespace {

template <std::size_t W>
constexpr Entries make_entries() {
  return {quantize_blocks_any<W>,
          dequantize_blocks_any<W>,
          add_block_errors_any<W>,
          scale_rows,
          add_row<W>,
          add_row_magnitudes<W>,
          decode_any<W>,
          encode_all<W>,
          fp8_decode_row<W>,
          fp8_encode_row<W>,
          amax_row,
          int_range_row,
          int_encode_row<W>,
          int_group_error<W>,
          int_decode_row<W>,
          pack_words_any,
          unpack_words_any,
          pack_word_row,
          unpack_word_row,
          nvfp4_quantize_pairs<W>,
          nvfp4_search_blocks<W>,
          nvfp4_dequantize_pairs<W>,
          gptq_feed_back<W>};
}

}  // namespace
}  // namespace quantmill::cpu
