#include "plan/quark_config.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/regular_expression.h"
#include "base/version.h"
#include "checkpoint/reader.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string tiny_config() {
  return test::read_text(test::golden("dflash2-tiny/config.json"));
}

ResolvedArchitecture tiny() {
  return resolve_architecture(load_architecture("dflash2"),
                              tiny_config(),
                              Checkpoint::open(test::golden("dflash2-tiny")).tensors(),
                              false);
}

// The exclude list if every quantizable tensor is quantized but those that `is_kept` names.
std::vector<std::string> exclude_keeping(const ResolvedArchitecture& architecture,
                                         const std::function<bool(const std::string&)>& is_kept) {
  std::vector<bool> quantized;
  for (const ModelTensor& tensor : architecture.tensors) {
    quantized.push_back(tensor.quantizable && !is_kept(tensor.name));
  }
  return exclude_list(architecture, quantized, Layout::kQuark);
}

std::function<bool(const std::string&)> containing(std::vector<std::string> parts) {
  return [parts = std::move(parts)](const std::string& name) {
    return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return name.find(part) != std::string::npos;
    });
  };
}

// The rule of vLLM and SGLang: an exact name, or "re:" and Python's re.match, which starts at the
// first character.
bool is_excluded(const std::vector<std::string>& exclude, const std::string& module) {
  return std::any_of(exclude.begin(), exclude.end(), [&](const std::string& entry) {
    return entry == module || (entry.substr(0, 3) == "re:" &&
                               RegularExpression(entry.substr(3)).matches_start(module));
  });
}

// Every module of the tiny drafter as vLLM names it: fused, with "model.", layers numbered after
// the target's 12.
const std::vector<std::string> kServedLinears = {"model.fc",
                                                 "model.layers.12.self_attn.qkv_proj",
                                                 "model.layers.12.self_attn.o_proj",
                                                 "model.layers.12.mlp.gate_up_proj",
                                                 "model.layers.12.mlp.down_proj",
                                                 "model.layers.13.self_attn.qkv_proj",
                                                 "model.layers.13.self_attn.o_proj",
                                                 "model.layers.13.mlp.gate_up_proj",
                                                 "model.layers.13.mlp.down_proj"};
const std::vector<std::string> kServedProjections = {
    "model.layers.12.attention_conv.kernel_projection",
    "model.layers.13.attention_conv.kernel_projection",
    "model.layers.12.mlp_conv.kernel_projection",
    "model.layers.13.mlp_conv.kernel_projection",
    "model.candidate_selector.hidden_projection"};
// The same as checkpoints name them.
const std::vector<std::string> kStoredLinears = {"fc",
                                                 "layers.0.self_attn.q_proj",
                                                 "layers.0.self_attn.k_proj",
                                                 "layers.0.self_attn.v_proj",
                                                 "layers.0.self_attn.o_proj",
                                                 "layers.0.mlp.gate_proj",
                                                 "layers.0.mlp.up_proj",
                                                 "layers.0.mlp.down_proj",
                                                 "layers.1.self_attn.q_proj",
                                                 "layers.1.self_attn.k_proj",
                                                 "layers.1.self_attn.v_proj",
                                                 "layers.1.self_attn.o_proj",
                                                 "layers.1.mlp.gate_proj",
                                                 "layers.1.mlp.up_proj",
                                                 "layers.1.mlp.down_proj"};

// Of all linears, served and stored, those that are excluded.
std::vector<std::string> excluded_linears(const std::vector<std::string>& exclude) {
  std::vector<std::string> excluded;
  for (const std::vector<std::string>& modules : {kServedLinears, kStoredLinears}) {
    std::copy_if(
        modules.begin(), modules.end(), std::back_inserter(excluded), [&](const auto& module) {
          return is_excluded(exclude, module);
        });
  }
  return excluded;
}

TEST(ExcludeList, ListsConvAndSelectorByDefault) {
  EXPECT_THAT(exclude_keeping(tiny(), containing({})),
              ElementsAre("candidate_selector.hidden_projection",
                          "layers.0.attention_conv.kernel_projection",
                          "layers.0.mlp_conv.kernel_projection",
                          "layers.1.attention_conv.kernel_projection",
                          "layers.1.mlp_conv.kernel_projection",
                          "re:.*hidden_projection$",
                          "re:.*kernel_projection$"));
}

TEST(ExcludeList, MatchesServersNamesOfWhatIsNeverQuantizedAndNothingElse) {
  const std::vector<std::string> exclude = exclude_keeping(tiny(), containing({}));
  for (const std::string& module : kServedProjections) {
    EXPECT_TRUE(is_excluded(exclude, module)) << module;
  }
  EXPECT_THAT(excluded_linears(exclude), ElementsAre());
}

TEST(ExcludeList, SpellsKeptAttentionWithTheFusedName) {
  const std::vector<std::string> exclude =
      exclude_keeping(tiny(), containing({"q_proj", "k_proj", "v_proj"}));
  EXPECT_THAT(exclude, Contains("re:.*self_attn\\.(q|k|v|qkv)_proj$"));
  EXPECT_THAT(exclude, Contains("layers.1.self_attn.k_proj"));
  EXPECT_THAT(excluded_linears(exclude),
              ElementsAre("model.layers.12.self_attn.qkv_proj",
                          "model.layers.13.self_attn.qkv_proj",
                          "layers.0.self_attn.q_proj",
                          "layers.0.self_attn.k_proj",
                          "layers.0.self_attn.v_proj",
                          "layers.1.self_attn.q_proj",
                          "layers.1.self_attn.k_proj",
                          "layers.1.self_attn.v_proj"));
}

TEST(ExcludeList, SpellsKeptFcWithAndWithoutPrefix) {
  const std::vector<std::string> exclude = exclude_keeping(tiny(), containing({"fc."}));
  EXPECT_THAT(exclude, Contains("re:^(model\\.)?fc$"));
  EXPECT_THAT(excluded_linears(exclude), ElementsAre("model.fc", "fc"));
}

TEST(ExcludeList, NumbersLayersBothWaysIfOnlySomeAreKept) {
  const std::vector<std::string> exclude = exclude_keeping(
      tiny(), containing({"layers.0.self_attn.q", "layers.0.self_attn.k", "layers.0.self_attn.v"}));
  EXPECT_THAT(exclude, Contains("re:^(model\\.)?layers\\.(0|12)\\.self_attn\\.(q|k|v|qkv)_proj$"));
  EXPECT_THAT(exclude, Not(Contains("re:.*self_attn\\.(q|k|v|qkv)_proj$")));
  EXPECT_THAT(excluded_linears(exclude),
              ElementsAre("model.layers.12.self_attn.qkv_proj",
                          "layers.0.self_attn.q_proj",
                          "layers.0.self_attn.k_proj",
                          "layers.0.self_attn.v_proj"));
  EXPECT_FALSE(is_excluded(exclude, "model.layers.120.self_attn.qkv_proj"));
}

TEST(ExcludeList, ExcludesTheMlpOfOneLayer) {
  const std::vector<std::string> exclude = exclude_keeping(tiny(), containing({"layers.1.mlp."}));
  EXPECT_THAT(exclude, Contains("re:^(model\\.)?layers\\.(1|13)\\.mlp\\.(gate|up|gate_up)_proj$"));
  EXPECT_THAT(exclude, Contains("re:^(model\\.)?layers\\.(1|13)\\.mlp\\.down_proj$"));
  EXPECT_THAT(excluded_linears(exclude),
              ElementsAre("model.layers.13.mlp.gate_up_proj",
                          "model.layers.13.mlp.down_proj",
                          "layers.1.mlp.gate_proj",
                          "layers.1.mlp.up_proj",
                          "layers.1.mlp.down_proj"));
}

TEST(ExcludeList, ExcludesEverythingIfNothingIsQuantized) {
  const std::vector<std::string> exclude = exclude_keeping(tiny(), containing({""}));
  EXPECT_EQ(excluded_linears(exclude).size(), kServedLinears.size() + kStoredLinears.size());
}

TEST(ExcludeList, HasTheArchitecturesExtraEntriesOnce) {
  ResolvedArchitecture architecture = tiny();
  architecture.extra_exclude = {"lm_head", "lm_head"};
  const std::vector<std::string> exclude = exclude_keeping(architecture, containing({}));
  EXPECT_EQ(std::count(exclude.begin(), exclude.end(), "lm_head"), 1);
}

TEST(ExcludeList, RefusesSomeLayersIfNumbersAreAmbiguous) {
  // With one target layer, drafter layer 0 is served as 1, the checkpoint's number of the next one.
  ResolvedArchitecture architecture = tiny();
  architecture.server_layer_offset = 1;
  try {
    exclude_keeping(architecture, containing({"layers.0.mlp.down"}));
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_THAT(error.message(), HasSubstr("layers.0.mlp.down_proj.weight is kept"));
  }
}

TEST(ExcludeList, RefusesSomeLayersIfTheOffsetIsUnknown) {
  ResolvedArchitecture architecture = tiny();
  architecture.server_layer_offset.reset();
  try {
    exclude_keeping(architecture, containing({"layers.0.mlp.down"}));
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("num_target_layers"));
  }
  EXPECT_THAT(exclude_keeping(architecture, containing({"mlp.down"})),
              Contains("re:.*mlp\\.down_proj$"));
}

TEST(OutputConfig, SeedModeGivesTheScriptsBytes) {
  Recipe recipe;
  recipe.compat = Compat::kSeed;
  EXPECT_EQ(output_config(tiny_config(), recipe, {{recipe.scheme, {}}}, {"ignored"}),
            test::read_text(test::golden("seed/as-written/config.json")));
}

TEST(OutputConfig, WritesTheSectionOfAmdQuarkKeyByKey) {
  const std::string written = output_config(tiny_config(), Recipe(), {{}}, {"lm_head"});
  const std::string expected = test::read_text(test::golden("configs/quark.mxfp4.config.json"));
  json ours = json::parse(written)["quantization_config"];
  json theirs = json::parse(expected)["quantization_config"];
  EXPECT_EQ(ours["version"], "0.13+quantmill-" + std::string(program_version()));
  ours.erase("version");
  theirs.erase("version");
  EXPECT_EQ(ours, theirs);
}

TEST(OutputConfig, WritesTheSectionInAmdQuarksOrder) {
  const auto section = [](const std::string& text) {
    const std::size_t begin = text.find("\"quantization_config\"");
    return text.substr(begin, text.find("\"version\"", begin) - begin);
  };
  EXPECT_EQ(section(output_config(tiny_config(), Recipe(), {{}}, {"lm_head"})),
            section(test::read_text(test::golden("configs/quark.mxfp4.config.json"))));
}

TEST(OutputConfig, KeepsTheSourceByteForByteBeforeTheSection) {
  const std::string source = tiny_config();
  const std::string written = output_config(source, Recipe(), {{}}, {});
  const std::string kept = source.substr(0, source.rfind("\n}"));
  EXPECT_THAT(written, testing::StartsWith(kept + ",\n  \"quantization_config\": {\n"));
  EXPECT_THAT(written, testing::EndsWith("\"\n  }\n}\n"));
}

TEST(OutputConfig, ReplacesASectionWhereItStands) {
  const std::string written = output_config(
      R"({"a": 1, "quantization_config": {"quant_method": "fp8"}, "b": 2})", Recipe(), {{}}, {});
  EXPECT_THAT(written, Not(HasSubstr("fp8\"")));
  EXPECT_LT(written.find("\"quantization_config\""), written.find("\"b\""));
  EXPECT_EQ(json::parse(written)["quantization_config"]["quant_method"], "quark");
}

TEST(OutputConfig, StatesTheScaleRuleOfTheWeights) {
  Recipe recipe;
  recipe.scale_rule = ScaleRule::kFloor;
  const json global = json::parse(output_config(
      "{}", recipe, {{recipe.scheme, {}}}, {}))["quantization_config"]["global_quant_config"];
  EXPECT_EQ(global["weight"]["scale_calculation_mode"], "floor");
  EXPECT_EQ(global["input_tensors"]["scale_calculation_mode"], "even");
}

TEST(OutputConfig, KeepsTheSpellingOfNumbers) {
  const std::string numbers =
      "{\n  \"a\": 1e-06,\n  \"b\": 10000000.0,\n  \"c\": 1E+5,\n  \"d\": 0.10,\n"
      "  \"e\": 123456789012345678901234567890,\n  \"f\": -7,\n  \"g\": 18446744073709551615,\n  "
      "\"h\": 1.0";
  const std::string written = output_config(numbers + "\n}", Recipe(), {{}}, {});
  EXPECT_EQ(written.substr(0, numbers.size()), numbers);
}

TEST(OutputConfig, WritesTextAsPythonDoes) {
  // json.dumps({"é\n\"\\/\x7f😀": []}, indent=2) of Python 3.11.
  const std::string source = "{\"\xC3\xA9\\n\\\"\\\\\\/\x7F\xF0\x9F\x98\x80\": []}";
  EXPECT_THAT(output_config(source, Recipe(), {{}}, {}),
              testing::StartsWith("{\n  \"\\u00e9\\n\\\"\\\\/\\u007f\\ud83d\\ude00\": [],\n"));
}

TEST(OutputConfig, PlainLayoutHasNoSectionAndTheSchemesDtype) {
  Recipe recipe;
  recipe.layout = Layout::kPlain;
  recipe.scheme = Scheme::kF32;
  const json config = json::parse(output_config(
      R"({"dtype": "bfloat16", "torch_dtype": "bfloat16", "quantization_config": {}})",
      recipe,
      {{recipe.scheme, {}}},
      {}));
  EXPECT_EQ(config, json::parse(R"({"dtype": "float32", "torch_dtype": "float32"})"));
}

TEST(OutputConfig, PlainLayoutStatesTheDtypeThatWasMissing) {
  Recipe recipe;
  recipe.layout = Layout::kPlain;
  recipe.scheme = Scheme::kBf16;
  EXPECT_EQ(output_config("{}", recipe, {{recipe.scheme, {}}}, {}),
            "{\n  \"dtype\": \"bfloat16\"\n}\n");
  EXPECT_EQ(output_config(R"({"torch_dtype": "float32"})", recipe, {{}}, {}),
            "{\n  \"torch_dtype\": \"bfloat16\"\n}\n");
}

struct BadConfig {
  const char* name;
  std::string text;
  const char* message;
};

class BadConfigJson : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigJson, IsRefused) {
  try {
    output_config(GetParam().text, Recipe(), {{}}, {});
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_THAT(error.message(), testing::StartsWith("config.json: "));
    EXPECT_THAT(error.message(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    BadConfigJson,
    testing::Values(BadConfig{"Empty", "", "not valid JSON"},
                    BadConfig{"Truncated", R"({"a": )", "not valid JSON"},
                    BadConfig{"List", "[1]", "an object is wanted, found a list"},
                    BadConfig{"Nan", R"({"eps": NaN})", "NaN or Infinity"},
                    BadConfig{"Infinity", R"({"eps": Infinity})", "NaN or Infinity"},
                    BadConfig{"MinusInfinity", R"({"a": [-Infinity]})", "NaN or Infinity"},
                    BadConfig{"ByteOrderMark", "\xEF\xBB\xBF{}", "byte order mark"},
                    BadConfig{"TwiceTheKey", R"({"a": 1, "a": 2})", "\"a\" appears twice"},
                    BadConfig{"NotUtf8", "{\"a\": \"\xFF\"}", "not valid JSON"},
                    BadConfig{"TooDeep", std::string(100000, '['), "nested deeper"},
                    BadConfig{"TwoDocuments", "{} {}", "not valid JSON"}),
    [](const auto& test_info) { return test_info.param.name; });

}  // namespace
}  // namespace quantmill
