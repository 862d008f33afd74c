#pragma once

// What the user wants, from a JSON file and options: every option of `quantmill quantize` that
// changes bytes. Recipe file: a JSON object with the keys of to_json(); an unknown key is an error.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/mx.h"
#include "plan/scheme.h"
#include "quant/awq.h"

namespace quantmill {

enum class Scaling { kNone, kAwqGrid, kBalance, kBlockGrid };
// What is rounded while serving: weights alone, or activations (to MXFP4) too.
enum class Objective { kW4A16, kW4A4 };
enum class FoldScales { kExact, kPow2, kOff };
enum class Compat { kNone, kSeed };
enum class ScaleType { kSource, kF32 };  // layout qwix: as exact as the source's need, or F32

// Scales of activations in the output, for schemes that take them (may_have_input_scale).
enum class InputScales {
  kAuto,    // where statistics have the maxima of all inputs; make_plan decides
  kStatic,  // from those maxima
  kNone,    // activations are quantized as they come, with nvfp4 not at all
};

// How a value becomes a code once its scale is known.
enum class Rounding {
  kNearest,
  kGptq,  // with what is lost fed back (kernels/gptq.h), where statistics have Gram matrices
};

enum class KvCache {
  kNone,  // nothing is said of it
  kFp8,   // e4m3, its scales from statistics
};

// What the tensors or modules that a shell pattern matches become.
struct SchemeRule {
  std::string pattern;
  std::optional<Scheme> scheme;  // nothing: they stay unquantized

  bool operator==(const SchemeRule&) const = default;
};

// What tensors become that no pattern speaks of, by name; nothing: they stay unquantized.
using ChosenSchemes = std::map<std::string, std::optional<Scheme>>;

// How large the result may be: the scheme of each tensor that no pattern speaks of is chosen so
// that the error is least (plan/target.h).
struct SizeTarget {
  // At most one of the two. A mean per weight, codes and scales, over all linears but those that
  // patterns keep.
  std::optional<double> bits;
  std::optional<std::uint64_t> bytes;  // of the output's weight files
  // Candidates; nothing: unquantized. Empty: target_schemes has those of the layout.
  std::vector<std::optional<Scheme>> schemes;

  [[nodiscard]] bool is_set() const { return bits.has_value() || bytes.has_value(); }

  bool operator==(const SizeTarget&) const = default;
};

struct Recipe {
  Scheme scheme = Scheme::kMxfp4;   // of what no rule matches
  std::vector<SchemeRule> schemes;  // the first that matches counts; `keep` comes before them
  SizeTarget target;
  ChosenSchemes chosen;  // for the target, or given; come after `schemes`
  Layout layout = Layout::kQuark;
  Scaling scaling = Scaling::kAwqGrid;
  std::vector<double> alphas = {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1};
  std::vector<double> betas = {0};
  Objective objective = Objective::kW4A16;
  ScaleRule scale_rule = ScaleRule::kEven;
  Rounding rounding = Rounding::kNearest;
  FoldScales fold_scales = FoldScales::kExact;
  InputScales input_scales = InputScales::kAuto;
  KvCache kv_cache = KvCache::kNone;
  std::uint64_t min_tokens = 32;  // with fewer, statistics are noise and the scales neutral
  std::vector<std::string> keep;  // shell patterns of tensor or module names that stay unquantized
  std::vector<std::string> include;  // parts of the model that are quantized on request only
  Compat compat = Compat::kNone;
  std::string jax_model;  // layout qwix: name of a built-in one, a file, or empty: nnx
  ScaleType scale_type = ScaleType::kSource;
  std::string architecture;  // name of a built-in one, a file, or empty: chosen from config.json
  bool allow_unknown = false;
  bool untie = false;  // embeddings that config.json calls one tensor, and are two, stay two
  std::uint64_t max_shard_bytes = 0;  // 0: the source's shards
};

// A recipe for a scheme in a layout, as it is where nothing else is said: mxfp4 has the settings
// that measured best on a real model (tests/quality).
Recipe default_recipe(Scheme scheme, Layout layout);

// What scaling tries, in order: alphas by betas with awq-grid, 1/2, 1/2 with balance, and quarters
// by quarters from 0 to 1 with block-grid. 0, 0 comes
// first if it is not among them, so that scaling is never worse than none by its own objective;
// with Compat::kSeed only the script's.
std::vector<ScaleExponents> tried_exponents(const Recipe& recipe);

// Whether block-grid divides |x|^alpha by a power of each channel's share of the largest weight of
// its block, instead of its rms: what measured better on a real model (docs/quality.md) where
// activations are rounded too and weights to the nearest.
bool divides_by_shares(const Recipe& recipe);

// Whether schemes are still to be chosen for its target.
bool awaits_choice(const Recipe& recipe);

// The candidates of a target: those that it lists, or by default the recipe's scheme, what its
// layout has that is wider (quark: mxfp6-e2m3 and fp8-channel, compressed-tensors: fp8-channel),
// and unquantized.
std::vector<std::optional<Scheme>> target_schemes(const Recipe& recipe);

// The first candidate that quantizes becomes the recipe's scheme, if the target lists any.
void take_first_candidate(Recipe& recipe);

// What the search measures errors in: the scheme, or mxfp4 where folding is all.
Scheme searched_scheme(Scheme scheme);

// Whether any scheme of it may have scales of activations.
bool takes_input_scales(const Recipe& recipe);

// What can't go together (kUsage): a layout that does not take every scheme, rules where nothing is
// quantized, alphas or betas empty or outside 0..1, objective w4a4 with a scheme that is not mxfp4,
// block-grid with one that is not MX, a target in a layout of one scheme, of no positive size or
// with candidates that lack the recipe's scheme, gptq with one that does not take it, compat seed
// with anything but mxfp4 in layout quark or what it folds in layout plain, compat seed with
// anything it fixes (scale_rule other than floor is overridden aloud by the caller, not here).
void check_recipe(const Recipe& recipe);

// Names as options and recipes spell them. *_from_name: kUsage naming the possible values.
std::string choice_name(std::optional<Scheme> scheme);  // "keep" for nothing
std::string_view scaling_name(Scaling scaling);
std::string_view objective_name(Objective objective);
std::string_view scale_rule_name(ScaleRule rule);
std::string_view rounding_name(Rounding rounding);
std::string_view fold_scales_name(FoldScales mode);
std::string_view input_scales_name(InputScales scales);
std::string_view kv_cache_name(KvCache kv_cache);
std::string_view compat_name(Compat compat);
std::string_view scale_type_name(ScaleType type);
std::optional<Scheme> choice_from_name(std::string_view name);
Scaling scaling_from_name(std::string_view name);
Objective objective_from_name(std::string_view name);
ScaleRule scale_rule_from_name(std::string_view name);
Rounding rounding_from_name(std::string_view name);
FoldScales fold_scales_from_name(std::string_view name);
InputScales input_scales_from_name(std::string_view name);
KvCache kv_cache_from_name(std::string_view name);
Compat compat_from_name(std::string_view name);
ScaleType scale_type_from_name(std::string_view name);

}  // namespace quantmill
