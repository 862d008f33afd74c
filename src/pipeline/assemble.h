#pragma once

// What rank 0 adds to the shards: index, config.json, the files beside the weights, the scales and
// the manifest.

#include <filesystem>

#include "base/log.h"
#include "checkpoint/reader.h"
#include "pipeline/write.h"
#include "plan/plan.h"
#include "stats/scales.h"

namespace quantmill {

// Writes and syncs everything into `folder`, which holds the shards and the scales already. Not
// collective: rank 0 only. Weight files that are left behind are named in the log. kIo.
void assemble(const Log& log,
              const Checkpoint& checkpoint,
              const Plan& plan,
              const Fingerprint& inputs,
              const ScaleTable& scales,
              const WrittenShards& shards,
              const std::filesystem::path& folder);

}  // namespace quantmill
