#include "stats/import.h"

#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "stats/torch_archive.h"

namespace quantmill {

Statistics import_tensor_parallel(const std::filesystem::path& prefix,
                                  const PartitionOf& partition_of) {
  const std::vector<std::filesystem::path> files = find_tensor_parallel_files(prefix);
  if (files.empty()) {
    throw Error(ErrorCode::kInput,
                fmt::format("there is no \"{}.tp0.pt\"; give the part of the files' names before "
                            "\".tp0.pt\", \".tp1.pt\" and so on",
                            prefix.string()));
  }
  std::vector<Statistics> parts;
  parts.reserve(files.size());
  for (const std::filesystem::path& file : files) {
    parts.push_back(read_torch_statistics(file));
  }
  return with_context(fmt::format("\"{}.tp*.pt\"", prefix.string()),
                      [&] { return merge_tensor_parallel(parts, partition_of); });
}

}  // namespace quantmill
