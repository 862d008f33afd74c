#include "plan/imatrix_statistics.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "stats/merge.h"

namespace quantmill {
namespace {

constexpr double kLaplaceSquare = 2;  // E[x^2] / E|x|^2

// What a module is called below its layer ("*": an expert's number) and, in llama.cpp, below
// "blk.N.".
struct NamePair {
  std::string_view module;
  std::string_view weight;
};

constexpr std::array kNames{
    NamePair{"self_attn.q_proj", "attn_q"},
    NamePair{"self_attn.k_proj", "attn_k"},
    NamePair{"self_attn.v_proj", "attn_v"},
    NamePair{"self_attn.qkv_proj", "attn_qkv"},
    NamePair{"self_attn.o_proj", "attn_output"},
    NamePair{"self_attn.q_a_proj", "attn_q_a"},
    NamePair{"self_attn.q_b_proj", "attn_q_b"},
    NamePair{"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    NamePair{"self_attn.kv_b_proj", "attn_kv_b"},
    NamePair{"self_attn.indexer.wq_b", "indexer.attn_q_b"},
    NamePair{"self_attn.indexer.wk", "indexer.attn_k"},
    NamePair{"self_attn.indexer.weights_proj", "indexer.proj"},
    NamePair{"linear_attn.in_proj_qkvz", "ssm_in"},
    NamePair{"linear_attn.in_proj_qkv", "attn_qkv"},
    NamePair{"linear_attn.in_proj_z", "attn_gate"},
    NamePair{"linear_attn.in_proj_ba", "ssm_ba"},
    NamePair{"mlp.gate_proj", "ffn_gate"},
    NamePair{"mlp.up_proj", "ffn_up"},
    NamePair{"mlp.gate_up_proj", "ffn_up"},
    NamePair{"mlp.down_proj", "ffn_down"},
    NamePair{"feed_forward.gate_proj", "ffn_gate"},
    NamePair{"feed_forward.up_proj", "ffn_up"},
    NamePair{"feed_forward.down_proj", "ffn_down"},
    NamePair{"mlp.gate", "ffn_gate_inp"},
    NamePair{"mlp.router", "ffn_gate_inp"},
    NamePair{"router.proj", "ffn_gate_inp"},
    NamePair{"block_sparse_moe.gate", "ffn_gate_inp"},
    NamePair{"feed_forward.router", "ffn_gate_inp"},
    NamePair{"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    NamePair{"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    NamePair{"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    NamePair{"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    NamePair{"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    NamePair{"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    NamePair{"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    NamePair{"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
    NamePair{"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
    NamePair{"feed_forward.shared_expert.down_proj", "ffn_down_shexp"},
    NamePair{"mlp.experts.*.gate_proj", "ffn_gate_exps"},
    NamePair{"mlp.experts.*.up_proj", "ffn_up_exps"},
    NamePair{"mlp.experts.*.gate_up_proj", "ffn_gate_exps"},
    NamePair{"mlp.experts.*.down_proj", "ffn_down_exps"},
    NamePair{"experts.*.gate_up_proj", "ffn_gate_exps"},
    NamePair{"experts.*.down_proj", "ffn_down_exps"},
    NamePair{"block_sparse_moe.experts.*.w1", "ffn_gate_exps"},
    NamePair{"block_sparse_moe.experts.*.w3", "ffn_up_exps"},
    NamePair{"block_sparse_moe.experts.*.w2", "ffn_down_exps"},
    NamePair{"feed_forward.experts.*.gate_up_proj", "ffn_gate_exps"},
    NamePair{"feed_forward.experts.*.down_proj", "ffn_down_exps"},
};

// Where the sums of an entry are not there, but those of another vector resemble them.
constexpr std::array kAlike{NamePair{"attn_kv_b", "attn_v_b"}};

// One matrix of an entry; nothing for all of them together.
struct ImatrixPlace {
  Imatrix::const_iterator entry;
  std::optional<std::uint64_t> matrix;
  bool is_alike = false;
};

// "12.mlp.up" -> 12, and moves behind "12."; nothing if no number is there.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || length == text.size() || text[length] != '.') {
    return std::nullopt;
  }
  text.remove_prefix(length + 1);
  return number;
}

// Behind "layers.", wherever the name has it; and an expert's number out of the middle:
// "mlp.experts.3.up_proj" and slice 3 of "mlp.experts.up_proj" are both "mlp.experts.*.up_proj", 3.
struct ModuleName {
  std::uint64_t layer = 0;
  std::string module;
  std::optional<std::uint64_t> expert;
};

std::optional<ModuleName> parse_module(std::string_view name, std::optional<std::uint64_t> slice) {
  constexpr std::string_view kLayers = "layers.";
  constexpr std::string_view kExperts = "experts.";
  const std::size_t layers = name.find(kLayers);
  if (layers == std::string_view::npos) {
    return std::nullopt;
  }
  name.remove_prefix(layers + kLayers.size());
  const std::optional<std::uint64_t> layer = take_number(name);
  if (!layer) {
    return std::nullopt;
  }
  ModuleName parsed{*layer, std::string(name), slice};
  const std::size_t experts = name.find(kExperts);
  if (experts != std::string_view::npos && (experts == 0 || name[experts - 1] == '.')) {
    std::string_view below = name.substr(experts + kExperts.size());
    if (const std::optional<std::uint64_t> expert = take_number(below)) {
      parsed.expert = expert;
    }
    parsed.module = fmt::format("{}*.{}", name.substr(0, experts + kExperts.size()), below);
  }
  return parsed;
}

Imatrix::const_iterator find_weight(const Imatrix& imatrix,
                                    std::uint64_t layer,
                                    std::string_view weight) {
  return imatrix.find(fmt::format("blk.{}.{}.weight", layer, weight));
}

std::optional<ImatrixPlace> find_place(const Imatrix& imatrix, const ModelTensor& reader) {
  if (reader.module().ends_with("lm_head")) {
    const auto entry = imatrix.find("output.weight");
    return entry == imatrix.end() ? std::nullopt : std::optional(ImatrixPlace{entry, {}, false});
  }
  const std::optional<ModuleName> name = parse_module(reader.module(), reader.slice);
  const auto* const pair = std::ranges::find(
      kNames, name ? std::string_view(name->module) : std::string_view(), &NamePair::module);
  if (!name || pair == kNames.end()) {
    return std::nullopt;
  }
  if (const auto entry = find_weight(imatrix, name->layer, pair->weight); entry != imatrix.end()) {
    return ImatrixPlace{entry, name->expert, false};
  }
  const auto* const alike = std::ranges::find(kAlike, pair->weight, &NamePair::module);
  if (alike != kAlike.end()) {
    const auto entry = find_weight(imatrix, name->layer, alike->weight);
    if (entry != imatrix.end()) {
      return ImatrixPlace{entry, std::nullopt, true};
    }
  }
  return std::nullopt;
}

// The means of several matrices of an entry, or of several entries, weighted by tokens; alike where
// the file has no tokens.
class PooledSquares {
 public:
  explicit PooledSquares(std::size_t num_channels) : sums_(num_channels, 0.0) {}

  void add(const ImatrixPlace& place) {
    const ImatrixEntry& entry = place.entry->second;
    const std::size_t columns = sums_.size();
    if (entry.sqmean.size() % columns != 0 || (entry.tokens && entry.num_channels != columns)) {
      refuse(place,
             fmt::format("{} channels, but the weights that read it have {} columns",
                         entry.num_channels,
                         columns));
    }
    const std::size_t matrices = entry.sqmean.size() / columns;
    if (place.matrix && *place.matrix >= matrices) {
      refuse(place,
             fmt::format("{} experts, but the model has an expert {}", matrices, *place.matrix));
    }
    const std::size_t first = place.matrix.value_or(0);
    const std::size_t last = place.matrix ? first + 1 : matrices;
    for (std::size_t matrix = first; matrix < last; ++matrix) {
      const std::uint64_t tokens = entry.tokens ? (*entry.tokens)[matrix] : 1;
      counted_ = counted_ && entry.tokens.has_value();
      tokens_ += tokens;
      for (std::size_t c = 0; c < columns; ++c) {
        sums_[c] += static_cast<double>(tokens) * double{entry.sqmean[matrix * columns + c]};
      }
    }
  }

  InputStatistics result(const std::string& source) {
    InputStatistics input;
    for (const double sum : sums_) {
      const double square = tokens_ == 0 ? 0.0 : sum / static_cast<double>(tokens_);
      input.sqmean.push_back(square);
      input.absmean.push_back(std::sqrt(square / kLaplaceSquare));
    }
    // An old file does not count tokens, but an expert that none reached is all zero there.
    const bool silent = std::ranges::all_of(sums_, [](double sum) { return sum == 0; });
    input.has_count = counted_ || silent;
    input.count = counted_ && !silent ? tokens_ : 0;
    input.source = source;
    return input;
  }

 private:
  [[noreturn]] static void refuse(const ImatrixPlace& place, const std::string& found) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "the imatrix's '{}' has {}; it is of another model", place.entry->first, found));
  }

  std::vector<double> sums_;
  std::uint64_t tokens_ = 0;
  bool counted_ = true;
};

// A weight that sees every token, if one does; otherwise all the experts', each once (gate and up
// saw the same).
std::vector<ImatrixPlace> places_of(const Imatrix& imatrix,
                                    const ResolvedArchitecture& architecture,
                                    const Activation& activation,
                                    std::set<std::string>& used) {
  std::vector<ImatrixPlace> places;
  if (!activation.part.empty() && !activation.name.starts_with("layers.")) {
    return places;  // "mtp.layers.0" is no blk.0
  }
  for (const std::size_t index : activation.readers) {
    const ModelTensor& reader = architecture.tensors[index];
    const std::optional<ImatrixPlace> place = find_place(imatrix, reader);
    if (!place) {
      continue;
    }
    used.insert(place->entry->first);
    if (!place->matrix) {
      if (places.empty() || places.front().matrix) {
        places = {*place};
      }
    } else if (places.empty() || (places.front().matrix && places.front().entry == place->entry)) {
      places.push_back(*place);
    }
  }
  return places;
}

}  // namespace

ImatrixStatistics imatrix_statistics(const ResolvedArchitecture& architecture,
                                     const Imatrix& imatrix) {
  ImatrixStatistics result;
  std::set<std::string> used;
  Statistics found;
  std::set<std::string> split;  // over ranks
  for (const Activation& activation : architecture.activations) {
    if (activation.recorded_as.empty()) {
      continue;
    }
    const std::vector<ImatrixPlace> places = places_of(imatrix, architecture, activation, used);
    if (places.empty()) {
      if (activation.part.empty()) {  // nobody misses what is quantized on request only
        result.missing.push_back(activation.name);
      }
      continue;
    }
    PooledSquares pooled(activation.reader_columns);
    for (const ImatrixPlace& place : places) {
      pooled.add(place);
    }
    const std::string& name = activation.recorded_as.front();
    if (places.front().is_alike) {
      result.alike.push_back(
          fmt::format("{} from {}", activation.name, places.front().entry->first));
    }
    found.try_emplace(name, pooled.result(places.front().entry->first));
    if (activation.split_over_ranks) {
      split.insert(name);
    }
  }
  if (found.empty()) {
    throw Error(ErrorCode::kInput,
                fmt::format("none of the imatrix's {} weights, e.g. '{}', is read in a model of "
                            "architecture '{}'; it is of another model",
                            imatrix.size(),
                            imatrix.begin()->first,
                            architecture.name));
  }
  for (const auto& [name, entry] : imatrix) {
    if (!used.contains(name)) {
      result.unused.push_back(name);
    }
  }
  result.statistics = merge_tensor_parallel({std::move(found)}, [&](const std::string& name) {
    return split.contains(name) ? Partition::kRow : Partition::kReplicated;
  });
  return result;
}

}  // namespace quantmill
