#pragma once

// Which codes of a source can be carried over into a scheme, so that nothing is rounded.

#include "plan/architecture.h"
#include "plan/scheme.h"
#include "plan/source_weights.h"

namespace quantmill {

// Whether `rows` of a source hold the scheme's codes, with scales of the same groups and of a type
// whose values the scheme's scales can have. With a scale of the whole tensor (has_tensor_scale)
// that is not enough: what servers fuse must have one (carried_scales).
bool holds_codes(const SourceWeight& source, const RowRange& rows, Scheme scheme);

}  // namespace quantmill
