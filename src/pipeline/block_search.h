#pragma once

// Scaling::kBlockGrid: scales chosen block by block. A block of 32 columns is rounded on its own,
// so that neither its error nor that of its activations depends on the scales of others.

#include "checkpoint/reader.h"
#include "device/context.h"
#include "pipeline/journal.h"
#include "pipeline/search_chunks.h"
#include "pipeline/team.h"
#include "plan/column_importance.h"
#include "plan/plan.h"
#include "stats/scales.h"
#include "stats/statistics.h"

namespace quantmill {

// As search_scales. Each block of 32 channels of a group takes the s of one of tried_exponents,
// times 1 or the root of 2 (which moves its values in the binade; not with FoldScales::kPow2), by
// the least error over the columns that read it: of rounding weights (mx_error_curve, over
// kBlockGridRows rows of each reader, sample_rows by what they add to the outputs), and with
// Objective::kW4A4 of activations. A group whose blocks share channels otherwise (ColumnMap::size
// is no multiple of 32) is chosen as a whole. `alphas` of the result are 0 and NaN, and so are
// `betas`: its errors are without scaling and as chosen.
//
// A group of many weights is cut into chunks of readers (cut_into_chunks, by `limits`), which are
// measured, then searched, by whoever is free. Magnitudes and errors are summed reader after reader
// in a chunk, and then chunk after chunk: the result depends on limits.weights and limits.most, and
// not on who computed what. One rank chooses for a group, and all take its choice. The journal has
// whole groups: of a search that was killed the groups of a wave are done again.
//
// Collective over team.world. Errors as search_scales.
ScaleTable search_blocks(const Team& team,
                         const Context& context,
                         const Checkpoint& checkpoint,
                         const Plan& plan,
                         const Statistics& statistics,
                         const ColumnImportance& importance,
                         JobJournal& journal,
                         const ChunkLimits& limits = {});

}  // namespace quantmill
