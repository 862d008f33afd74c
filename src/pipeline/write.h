#pragma once

// Writes the shards of an output checkpoint, each rank its share, at offsets that the plan fixed.

#include <filesystem>
#include <vector>

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/fold_table.h"
#include "pipeline/journal.h"
#include "pipeline/manifest.h"
#include "pipeline/page_cache.h"
#include "pipeline/produce.h"
#include "pipeline/team.h"
#include "plan/column_importance.h"
#include "plan/plan.h"

namespace quantmill {

struct WrittenShards {
  std::vector<ManifestFile> files;   // in the plan's order of shards
  std::vector<TensorError> tensors;  // in the plan's order of tensors, quantized ones only
};

// Shards go to nodes by cost; within a node, ranks and threads take row ranges from a shared
// counter. Each file is reserved at its final size, written in place, and synced. Collective over
// team.world; every rank gets the same result. buffer_bytes: per worker. `folder` exists and is
// seen by all ranks.
// Tasks that the journal has are not done again: their bytes are in the files. A finished task is
// noted in the journal once its bytes are synced. `feedback`: as of RowProducer; what shares a
// factor is then written together, on whichever rank. Errors, kInput: what RowProducer refuses.
// `drops`: of the output. kIo: also a file of an earlier run that is gone or has another size.
WrittenShards write_shards(const Team& team,
                           const Context& context,
                           const Checkpoint& checkpoint,
                           const Plan& plan,
                           const std::vector<ActivationFold>& folds,
                           const TensorRanges& ranges,
                           const ColumnImportance& importance,
                           FeedbackFactors* feedback,
                           const std::filesystem::path& folder,
                           std::uint64_t buffer_bytes,
                           const PageDrops& drops,
                           JobJournal& journal);

}  // namespace quantmill
