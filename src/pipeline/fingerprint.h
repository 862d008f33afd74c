#pragma once

// What an output depends on: two jobs with the same fingerprint write the same bytes.

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/reader.h"
#include "comm/mpi.h"
#include "pipeline/feedback_factors.h"
#include "plan/recipe.h"
#include "stats/statistics.h"

namespace quantmill {

// What -> its value, as text for people. Keys: "program", "recipe", "statistics", "scales",
// "config.json", with --rounding gptq "Gram matrices" (FeedbackFactors::hash), in layout qwix "JAX
// model", and one "source NAME" for each shard with its size and the hash of its header.
using Fingerprint = std::map<std::string, std::string>;

// Statistics count by their values, not by the files that they came in. `feedback` may be null.
// kIo; and what FeedbackFactors::hash refuses.
Fingerprint make_fingerprint(const Checkpoint& source,
                             const Recipe& recipe,
                             const Statistics& statistics,
                             const FeedbackFactors* feedback,
                             const std::optional<std::filesystem::path>& given_scales);

// The same with each shard's time of last change, of the files that are open: contents that change
// without the header are noticed too.
Fingerprint with_times(Fingerprint fingerprint, const Checkpoint& source);

// kInput, naming the first difference, unless all ranks see the same. Collective.
void check_agreement(const Communicator& world, const Fingerprint& fingerprint);

// kInput if the source's files are no longer those that were opened, as they were then: the job has
// read neither the old nor the new model. kIo if one is gone.
void check_unchanged(const Checkpoint& source);

std::string print_fingerprint(const Fingerprint& fingerprint);
// kInput if `text` is not what print_fingerprint writes.
Fingerprint parse_fingerprint(const std::string& text);

// The first difference, for people: "statistics was …, is …"; empty if there is none.
std::string describe_difference(const Fingerprint& was, const Fingerprint& is);

}  // namespace quantmill
