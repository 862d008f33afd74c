#include "stats/byte_stream.h"

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

void ByteStream::require(std::uint64_t count) const {
  if (count > left()) {
    throw Error(ErrorCode::kInput,
                fmt::format("the file is cut short: {} bytes are wanted at offset {}, {} are left",
                            count,
                            offset_,
                            left()));
  }
}

}  // namespace quantmill
