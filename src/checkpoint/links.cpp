#include "checkpoint/links.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/index.h"
#include "checkpoint/json_events.h"

namespace quantmill {
namespace {

bool is_inside(const std::filesystem::path& path, const std::filesystem::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

void check_links(const Checkpoint& checkpoint) {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::weakly_canonical(checkpoint.folder(), error);
  std::vector<std::filesystem::path> inside = {folder};
  if (folder.parent_path().filename() == "snapshots") {
    inside.push_back(folder.parent_path().parent_path() / "blobs");
  }
  std::vector<std::filesystem::path> files = checkpoint.other_files();
  for (const SourceShard& shard : checkpoint.shards()) {
    files.emplace_back(shard.file_name);
  }
  files.emplace_back(kIndexFileName);
  for (const std::filesystem::path& file : files) {
    const std::filesystem::path real = std::filesystem::weakly_canonical(folder / file, error);
    if (std::ranges::none_of(
            inside, [&](const std::filesystem::path& place) { return is_inside(real, place); })) {
      throw Error(
          ErrorCode::kInput,
          fmt::format(
              "checkpoint {}: {} is a link to {}, outside the checkpoint, and would be copied; if "
              "you made it so, say --follow-links",
              checkpoint.folder().string(),
              quote_name(file.string()),
              real.string()));
    }
  }
}

}  // namespace

Checkpoint open_source(const std::filesystem::path& folder, bool follow_links) {
  Checkpoint checkpoint = Checkpoint::open(folder);
  if (!follow_links) {
    check_links(checkpoint);
  }
  return checkpoint;
}

}  // namespace quantmill
