#include "pipeline/findings.h"

#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace quantmill {
namespace {

constexpr std::size_t kMost = 20;  // of one check; the rest is counted

}  // namespace

void Findings::add(std::size_t index, std::string text) {
  const std::lock_guard lock(mutex_);
  texts_.emplace(index, std::move(text));
  if (texts_.size() > kMost) {
    texts_.erase(std::prev(texts_.end()));
    ++more_;
  }
}

void Findings::add_once(const Team& team, std::size_t index, std::string text) {
  if (team.is_leader()) {
    add(index, std::move(text));
  }
}

void Findings::finish(const Team& team,
                      Check check,
                      const std::string& passed,
                      VerifyReport& report) {
  const nlohmann::json found = {
      {"texts", std::vector<std::pair<std::size_t, std::string>>(texts_.begin(), texts_.end())},
      {"more", more_}};
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(found);
  texts_.clear();
  more_ = 0;
  for (const auto& other : team.world.gather_all(std::as_bytes(std::span(bytes)))) {
    const auto* const first = reinterpret_cast<const std::uint8_t*>(other.data());
    const nlohmann::json of_rank = nlohmann::json::from_cbor(first, first + other.size());
    more_ += of_rank.at("more").get<std::size_t>();
    for (const auto& [index, text] :
         of_rank.at("texts").get<std::vector<std::pair<std::size_t, std::string>>>()) {
      add(index, text);
    }
  }
  const std::vector<std::byte> leaders(std::as_bytes(std::span(passed)).begin(),
                                       std::as_bytes(std::span(passed)).end());
  const std::vector<std::byte> told = team.world.broadcast(leaders, 0);
  if (texts_.empty()) {
    report.passed.emplace_back(reinterpret_cast<const char*>(told.data()), told.size());
    return;
  }
  report.first = report.first.value_or(check);
  for (auto& [index, text] : texts_) {
    report.findings.push_back(std::move(text));
  }
  if (more_ > 0) {
    report.findings.push_back(fmt::format("… and {} more of this kind", more_));
  }
}

}  // namespace quantmill
