#pragma once

// What a check finds wrong, gathered from the threads and ranks that share it, in an order that
// does not depend on them.

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "pipeline/team.h"
#include "pipeline/verify.h"

namespace quantmill {

class Findings {
 public:
  // Of the item number `index`; findings are told in that order. A few are kept, the rest is
  // counted. Thread-safe, not collective.
  void add(std::size_t index, std::string text);

  // Of something that every rank sees: counts on the leader alone.
  void add_once(const Team& team, std::size_t index, std::string text);

  // Adds what was found on all ranks to the report, or else the leader's line that says what
  // passed. Collective over team.world; the same report on every rank.
  void finish(const Team& team, Check check, const std::string& passed, VerifyReport& report);

 private:
  std::mutex mutex_;
  std::multimap<std::size_t, std::string> texts_;  // the first ones
  std::size_t more_ = 0;
};

}  // namespace quantmill
