#pragma once

// Private to source_weights*.cpp: weights of packed integers, once their parts are known. Each
// fills shape, encoding, packing and blocks of `weight`, whose entry still has the codes' shape.
// Errors, kInput, naming the tensor: parts whose types or shapes do not fit each other, bits or a
// format that are not known.

#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "plan/quantization_settings.h"
#include "plan/source_weights.h"

namespace quantmill {

// "F32 [2, 3]".
std::string describe(const TensorEntry& entry);

// Codes and scales that do not fit together.
[[noreturn]] void fail_scales(const std::vector<SourceTensor>& stored, const SourceWeight& weight);

// compressed-tensors: codes I32 [.., N, K / 8], scales [.., N, groups], zero points I32
// [.., N / 8, groups].
void describe_packed_integers(const std::vector<SourceTensor>& stored,
                              const QuantizationSettings& settings,
                              SourceWeight& weight);

// AutoAWQ, Quark: codes I32 [K, N / 8]. GPTQ: codes I32 [K / 8, N]. All: scales [groups, N], zero
// points I32 [groups, N / 8].
void describe_turned_integers(const std::vector<SourceTensor>& stored,
                              const QuantizationSettings& settings,
                              SourceWeight& weight);

}  // namespace quantmill
