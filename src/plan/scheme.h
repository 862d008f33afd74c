#pragma once

// Number formats of quantized weights and how layouts store them: which tensors, of what types and
// shapes, in place of one weight [rows, cols].

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codec.h"
#include "tensor/dtype.h"

namespace quantmill {

enum class Scheme {
  kMxfp4,         // OCP MX: e2m1 in blocks of 32
  kMxfp6E2m3,     // e2m3
  kMxfp6E3m2,     // e3m2
  kMxfp8,         // e4m3
  kNvfp4,         // e2m1 in blocks of 16 with an e4m3 scale, and a scale per tensor
  kFp8Tensor,     // e4m3 with a scale per tensor
  kFp8Channel,    // e4m3 with a scale per row
  kFp8Block,      // e4m3 with a scale per 128 x 128
  kInt8,          // symmetric, a scale per row; activations too
  kW8a16,         // symmetric, a scale per row; weights only, as all that follow
  kW8a16G128,     // … per 128 columns
  kInt4G128,      // symmetric, a scale per 128 columns
  kInt4G32,       // … per 32
  kInt4AsymG128,  // with zero points
  kInt4AsymG32,
  kSource,  // the codes that the source has; what it has unquantized stays so
  kBf16,    // not quantized: what folding gives
  kF16,
  kF32,
};

enum class Layout {
  kQuark,              // AMD Quark
  kCompressedTensors,  // llm-compressor
  kFp8,                // FP8 blocks as DeepSeek-V3 stores them
  kGptOss,             // experts that are one tensor, as the released gpt-oss stores them
  kPlain,              // not quantized
  kQwix,               // parameters of a JAX model as Qwix loads them
};

std::string_view scheme_name(Scheme scheme);
std::string_view layout_name(Layout layout);
// kUsage naming the possible values.
Scheme scheme_from_name(std::string_view name);
Layout layout_from_name(std::string_view name);

bool is_floating_point(Scheme scheme);  // kBf16, kF16, kF32
bool is_mx(Scheme scheme);
ElementFormat mx_element(Scheme scheme);  // of one that is_mx
bool takes_feedback(Scheme scheme);       // gains by rounding with gptq: MX, NVFP4, integers
bool is_asymmetric(Scheme scheme);        // with zero points

// Some scale is for a whole tensor, so that its largest magnitude must be known before any of it is
// written. Tensors that servers fuse have one scale.
bool has_tensor_scale(Scheme scheme);

// Activations may be quantized with a scale that is stored, and not as they come.
bool may_have_input_scale(Scheme scheme);

// The layout that a scheme has if none is asked for.
Layout default_layout(Scheme scheme);

// kUsage, with what goes together, if no reader of the layout takes the scheme.
void check_layout(Scheme scheme, Layout layout);

// Rows that share scales: work is cut between them only.
std::uint64_t rows_together(Scheme scheme);

// The columns of a weight must be a multiple of this.
std::uint64_t columns_together(Scheme scheme);

enum class PartKind {
  kCodes,
  kScales,
  kZeroPoints,
  kTensorScale,  // beside kScales
  kShape,        // I64 [2]: rows and columns, which packed codes do not tell
  kInputScale,   // of the activations that the weight reads
};

// One of the tensors that store a weight. Its rows follow the weight's: one for each
// `weight_rows` of them; if it is turned, its columns do.
struct StoredPart {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  PartKind kind = PartKind::kCodes;
  std::uint64_t weight_rows = 1;
  bool turned = false;
};

// The codes first, then the scales. `name` is the weight's: "….weight". Layout qwix arranges what
// the scheme's default layout stores.
std::vector<StoredPart> stored_parts(Scheme scheme,
                                     Layout layout,
                                     const std::string& name,
                                     std::uint64_t rows,
                                     std::uint64_t cols,
                                     bool has_input_scale);

// Layout::kGptOss: all experts of a layer, `name` [experts, cols, rows].
std::vector<StoredPart> gpt_oss_parts(const std::string& name,
                                      std::uint64_t experts,
                                      std::uint64_t rows,
                                      std::uint64_t cols);

}  // namespace quantmill
