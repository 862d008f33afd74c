#pragma once

// Checks a finished checkpoint: its files, its structure, every byte against the source, and the
// folds.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "device/context.h"
#include "pipeline/team.h"

namespace quantmill {

struct VerifyOptions {
  std::filesystem::path out;
  std::optional<std::filesystem::path> source;  // make every byte again from here and compare
  // That the job had; needed with source if it rounded by gptq, ignored otherwise.
  std::optional<std::filesystem::path> statistics;
  bool function = false;  // prove the folds (needs source)
};

// What is checked, in this order.
enum class Check { kFiles, kStructure, kSource, kFunction };

struct VerifyReport {
  std::vector<std::string> passed;    // what was checked, one line each
  std::vector<std::string> findings;  // what is wrong, one line each; empty: all is well
  std::optional<Check> first;         // that found something
};

// Shared among all ranks and threads of the team; the report is the same on every rank, and the
// same for any number of them. Collective over team.world. Errors: kUsage: function without source,
// gptq without statistics; kInput: no manifest, or a source that the recipe does not fit;
// kInterrupted. Anything wrong with the checkpoint itself is a finding.
VerifyReport verify_checkpoint(const Team& team,
                               const Context& context,
                               const VerifyOptions& options);

}  // namespace quantmill
