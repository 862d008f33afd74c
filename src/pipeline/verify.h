#pragma once

// Checks a finished checkpoint: its files, its structure, every byte against the source, and the
// folds.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "device/context.h"

namespace quantmill {

struct VerifyOptions {
  std::filesystem::path out;
  std::optional<std::filesystem::path> source;  // make every byte again from here and compare
  // That the job had; needed with source if it rounded by gptq, ignored otherwise.
  std::optional<std::filesystem::path> statistics;
  bool function = false;  // prove the folds (needs source)
  int num_threads = 1;
};

struct VerifyReport {
  std::vector<std::string> passed;    // what was checked, one line each
  std::vector<std::string> findings;  // what is wrong, one line each; empty: all is well
};

// Not collective. Errors: kUsage: function without source, gptq without statistics; kInput: no
// manifest, or a source that the recipe does not fit. Anything wrong with the checkpoint itself is
// a finding.
VerifyReport verify_checkpoint(const Context& context, const VerifyOptions& options);

}  // namespace quantmill
