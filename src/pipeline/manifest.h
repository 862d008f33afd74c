#pragma once

// quantmill_manifest.json: what an output checkpoint is made of and how, so that it can be verified
// and made again. Keys: manifest_schema (1), program ("quantmill VERSION"), architecture, recipe
// (as a recipe file), inputs (what the output depends on: see fingerprint.h), files (list of {name,
// size_bytes, xxh128}: everything in the folder but the manifest), fold_groups (list of {name,
// channels, alpha and beta or null, alphas, betas, errors, s_min, s_max, not_scaled, tokens or
// null}), tensors (list of {name, stored_as, relative_error, activation_weighted_error or null}:
// every quantized tensor), kept (list of {name, stored_as, size_bytes, why}: every other one),
// bytes_before, bytes_after, bytes_by_type
// ({before, after}: {type: bytes}), parameters ({all, quantized}: numbers of weights).
// With a target also target (target_to_json).
// It says nothing of time, place, ranks or threads: the same job gives the same manifest. What
// differs from run to run is in quantmill_run.json (run_record.h).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "pipeline/fingerprint.h"
#include "plan/plan.h"
#include "stats/scales.h"

namespace quantmill {

inline constexpr const char* kManifestName = "quantmill_manifest.json";
inline constexpr const char* kScalesName = "quantmill_scales.h5";

struct ManifestFile {
  std::string name;  // relative to the folder
  std::uint64_t size_bytes = 0;
  std::string xxh128;
};

struct TensorError {
  std::string name;
  std::string stored_as;      // scheme
  double relative_error = 0;  // ||quantized - folded|| / ||folded||
  // The same with columns weighted by what they are multiplied by (add_errors); nothing
  // without statistics of it.
  std::optional<double> activation_weighted_error;
};

struct Manifest {
  std::string program;
  std::string recipe_json;
  Fingerprint inputs;
  std::vector<ManifestFile> files;
  std::vector<TensorError> tensors;
};

std::string print_manifest(const Checkpoint& source,
                           const Plan& plan,
                           const Fingerprint& inputs,
                           const ScaleTable& scales,
                           const std::vector<ManifestFile>& files,
                           const std::vector<TensorError>& tensors);

// kInput naming what is wrong if `folder` has no manifest or one that does not parse.
Manifest read_manifest(const std::filesystem::path& folder);

// The same of a manifest's text; `file` is for messages.
Manifest parse_manifest(const std::string& text, const std::string& file);

}  // namespace quantmill
