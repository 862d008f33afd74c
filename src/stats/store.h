#pragma once

// Statistics in HDF5, schema 1. The file's root has the attributes
//   quantmill_kind = "statistics", quantmill_schema = 1 (i64), quantmill_version = the program that
//   wrote it;
// one group per input below /inputs, its name the input's with "/" written "%2F", "%" written "%25"
// and the name "." written "%2E" (encode_object_name in schema.h):
//   dataset absmean f64 [K], optional sqmean f64 [K], absmax f64 [K], gram f32 [K (K + 1) / 2]
//   (gram.h);
//   attribute gram_tokens (u64, with gram), count (u64, absent if unknown), partition ("replicated"
//   or "row"), part_channels (u64 [ranks], row only), source (text).

#include <filesystem>
#include <functional>
#include <string>

#include "stats/gram.h"
#include "stats/statistics.h"

namespace quantmill {

// The Gram matrix of an input whose gram_tokens is not 0.
using GramOf = std::function<LowerTriangle(const std::string& name)>;

// Written under a temporary name, synced, renamed. The same statistics give the same bytes. The
// file is made in memory. `gram_of` may be empty if there are no Gram matrices.
// Errors: kIo; and check_statistics' refusals.
void write_statistics(const std::filesystem::path& file,
                      const Statistics& statistics,
                      const GramOf& gram_of = {});

// Errors: kInput for anything that is not such a file, naming the file and the object; and
// check_statistics' refusals.
Statistics read_statistics(const std::filesystem::path& file);

}  // namespace quantmill
