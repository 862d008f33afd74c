// The built-in architectures against headers of released models (tests/golden/families, written by
// tests/interop/make_families.py): every tensor is known and has the shape that config.json says,
// and as many vectors can take a scale as were counted by hand.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/reader.h"
#include "plan/architecture.h"
#include "plan/quark_config.h"
#include "plan/selection.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

struct Model {
  std::string config;
  std::string architecture;
  std::vector<SourceTensor> tensors;
  std::size_t num_tensors = 0;
  std::size_t num_folds = 0;
};

// "0-2,5" is 0, 1, 2, 5.
std::vector<std::string> numbers(const std::string& ranges) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < ranges.size();) {
    const std::size_t end = std::min(ranges.find(',', begin), ranges.size());
    const std::string range = ranges.substr(begin, end - begin);
    const std::size_t dash = std::min(range.find('-'), range.size());
    const int first = std::stoi(range.substr(0, dash));
    const int last = dash == range.size() ? first : std::stoi(range.substr(dash + 1));
    for (int number = first; number <= last; ++number) {
      found.push_back(std::to_string(number));
    }
    begin = end + 1;
  }
  return found;
}

void add_tensors(const std::string& pattern,
                 const std::vector<std::uint64_t>& shape,
                 std::vector<SourceTensor>& tensors) {
  const std::size_t open = pattern.find('[');
  if (open == std::string::npos) {
    SourceTensor tensor;
    tensor.entry.name = pattern;
    tensor.entry.dtype = DType::kBf16;
    tensor.entry.shape = shape;
    tensors.push_back(tensor);
    return;
  }
  const std::size_t close = pattern.find(']');
  for (const std::string& number : numbers(pattern.substr(open + 1, close - open - 1))) {
    add_tensors(pattern.substr(0, open) + number + pattern.substr(close + 1), shape, tensors);
  }
}

// A file's name as gtest takes it.
std::string test_name(const std::filesystem::path& file) {
  std::string name = file.stem().string();
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

// Test name -> file.
std::map<std::string, std::filesystem::path> model_files() {
  std::map<std::string, std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(test::golden("families"))) {
    files.emplace(test_name(entry.path()), entry.path());
  }
  return files;
}

Model read_model(const std::string& name) {
  const auto json = nlohmann::json::parse(test::read_text(model_files().at(name)));
  Model model{json["config"].dump(), json["architecture"], {}, json["tensors"], json["folds"]};
  for (const auto& line : json["header"]) {
    add_tensors(line[0], line[1], model.tensors);
  }
  return model;
}

constexpr std::size_t kAll = 1'000'000;
constexpr std::size_t kSmall = 10'000;

// Of models with fewer tensors than `limit`.
std::vector<std::string> model_names(std::size_t limit) {
  std::vector<std::string> names;
  for (const auto& [name, file] : model_files()) {
    if (read_model(name).num_tensors < limit) {
      names.push_back(name);
    }
  }
  return names;
}

ResolvedArchitecture resolve(const Model& model, const std::vector<SourceTensor>& tensors) {
  return resolve_architecture(
      find_architecture(model.config), model.config, tensors, /*allow_unknown=*/false);
}

// What else would the rounding of a linear be weighed by?
void expect_quantizable_linears_are_readers(const ResolvedArchitecture& resolved) {
  std::vector<bool> is_read(resolved.tensors.size(), false);
  for (const Activation& activation : resolved.activations) {
    for (const std::size_t reader : activation.readers) {
      is_read[reader] = true;
    }
  }
  for (std::size_t i = 0; i < resolved.tensors.size(); ++i) {
    const ModelTensor& tensor = resolved.tensors[i];
    EXPECT_TRUE(is_read[i] || !tensor.quantizable || !tensor.part.empty()) << tensor.name;
  }
}

class Families : public testing::TestWithParam<std::string> {};

class SmallFamilies : public Families {};

TEST_P(Families, EveryTensorIsKnownAndEveryFoldIsThere) {
  const Model model = read_model(GetParam());
  ASSERT_EQ(model.tensors.size(), model.num_tensors);
  const ResolvedArchitecture resolved = resolve(model, model.tensors);
  EXPECT_EQ(resolved.name, model.architecture);
  EXPECT_EQ(std::ranges::count(resolved.fold_groups, "", &FoldGroup::no_fold_reason),
            model.num_folds);
  expect_quantizable_linears_are_readers(resolved);
}

TEST_P(SmallFamilies, AnUnknownAMissingAndAMisshapenTensorAreNamed) {
  const Model model = read_model(GetParam());
  const auto refusal = [&](const std::vector<SourceTensor>& tensors) {
    return test::error_of([&] { resolve(model, tensors); }).message();
  };
  std::vector<SourceTensor> tensors = model.tensors;
  add_tensors("model.layers.0.surprise.weight", {2, 2}, tensors);
  EXPECT_THAT(refusal(tensors), HasSubstr("model.layers.0.surprise.weight"));

  tensors = model.tensors;
  const auto norm = std::ranges::find_if(tensors, [](const SourceTensor& tensor) {
    return tensor.entry.name == "norm.weight" || tensor.entry.name.ends_with("model.norm.weight");
  });
  ASSERT_NE(norm, tensors.end());
  const std::string name = norm->entry.name;
  ++norm->entry.shape.back();
  EXPECT_THAT(refusal(tensors), HasSubstr(name));
  tensors.erase(norm);
  EXPECT_THAT(refusal(tensors), HasSubstr("norm.weight is missing"));
}

// Quantizing every linear that may be, of these parts too.
std::vector<std::string> exclude_list_of(const std::string& name,
                                         const std::vector<std::string>& parts = {}) {
  const Model model = read_model(name);
  const ResolvedArchitecture resolved = resolve(model, model.tensors);
  Recipe recipe;
  recipe.include = parts;
  std::vector<bool> quantized;
  for (const SchemeChoice& choice : choose_schemes(resolved, recipe)) {
    quantized.push_back(choice.is_quantized());
  }
  return exclude_list(resolved, quantized);
}

// The linears of a release that are quantized on request only, without what all names begin with.
std::vector<std::string> linears_of_part(const std::string& name) {
  const Model model = read_model(name);
  std::vector<std::string> names;
  for (const ModelTensor& tensor : resolve(model, model.tensors).tensors) {
    if (tensor.part == "mtp") {
      names.push_back(tensor.module.substr(std::string("model.layers.").size()));
    }
  }
  return names;
}

TEST(ReleasedFamilies, CopiedPartsAreExcludedAsReadersSpellThem) {
  EXPECT_THAT(exclude_list_of("gemma_3_4b"),
              ElementsAre("*multi_modal_projector.*",
                          "*vision_tower.*",
                          "lm_head",
                          "re:.*multi_modal_projector\\..*",
                          "re:.*vision_tower\\..*"));
  EXPECT_THAT(exclude_list_of("deepseek_v3"),
              IsSupersetOf({"*layers.61.*", "re:.*layers\\.61\\..*", "model.layers.3.mlp.gate"}));
  EXPECT_THAT(exclude_list_of("phi_4"), ElementsAre("lm_head", "re:.*lm_head$"));
}

TEST(ReleasedFamilies, MultiTokenPredictionHasLinearsThatAreQuantizedOnRequest) {
  const std::vector<std::string> deepseek = linears_of_part("deepseek_v3");
  EXPECT_EQ(deepseek.size(), 5 + 256 * 3 + 3);  // attention, experts, the shared expert
  EXPECT_THAT(deepseek,
              IsSupersetOf({"61.self_attn.q_a_proj",
                            "61.self_attn.q_b_proj",
                            "61.self_attn.kv_a_proj_with_mqa",
                            "61.self_attn.kv_b_proj",
                            "61.self_attn.o_proj",
                            "61.mlp.experts.255.up_proj",
                            "61.mlp.shared_experts.down_proj"}));
  EXPECT_EQ(linears_of_part("glm_4_5_air").size(), 4 + 128 * 3 + 3);
  EXPECT_EQ(linears_of_part("deepseek_v3_2").size(), 5 + 256 * 3 + 3);  // and no indexer's
  EXPECT_TRUE(linears_of_part("llama_3_1_8b").empty());
}

TEST(ReleasedFamilies, WhatStaysOfAQuantizedPartIsExcludedByName) {
  std::vector<std::string> entries = exclude_list_of("glm_4_5_air", {"mtp"});
  std::erase_if(entries,
                [](const std::string& entry) { return entry.find("46") == std::string::npos; });
  EXPECT_THAT(entries,
              ElementsAre("model.layers.46.eh_proj",
                          "model.layers.46.embed_tokens",
                          "model.layers.46.mlp.gate",
                          "model.layers.46.shared_head.head"));
}

constexpr auto kName = [](const auto& model) { return model.param; };

INSTANTIATE_TEST_SUITE_P(Released, Families, testing::ValuesIn(model_names(kAll)), kName);
INSTANTIATE_TEST_SUITE_P(Released, SmallFamilies, testing::ValuesIn(model_names(kSmall)), kName);

}  // namespace
}  // namespace quantmill
