#pragma once

// Statistics written by torch.save: a zip archive with a pickle, read without executing anything.
// Layout: {name: {"absmean": float tensor [K], "sqmean"?, "absmax"?: the same, "count"?: int or 0-d
// integer tensor}}.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "stats/statistics.h"

namespace quantmill {

// One rank's file. A leading "model." of names is dropped. Other keys of an input are passed over.
// Errors, kInput, naming the file: not a zip archive (says so for torch's old non-zip form),
// truncated, a CRC that does not match, no data.pkl, a pickle opcode or global that tensors in
// dicts do not need (named), a storage that is missing or has the wrong size, a view outside its
// storage, wrong dtype or rank, no absmean, big-endian data; and what check_statistics refuses.
Statistics read_torch_statistics(const std::filesystem::path& file);

// The same for the bytes of a file; `source` is kept as the inputs' source. Errors do not name it.
Statistics parse_torch_statistics(std::span<const std::byte> bytes, const std::string& source);

// PREFIX.tp0.pt, PREFIX.tp1.pt … in numeric order; empty if there is no PREFIX.tp0.pt or other
// part. Errors, kInput: a number is missing (which).
std::vector<std::filesystem::path> find_tensor_parallel_files(const std::filesystem::path& prefix);

}  // namespace quantmill
