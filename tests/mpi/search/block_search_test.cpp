// The scales that are chosen block by block are the same to the bit, whatever the ranks, nodes and
// threads, also where groups are cut into chunks and searched in waves.

#include "pipeline/block_search.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <gmock/gmock.h>

#include "base/error.h"
#include "pipeline/search.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace quantmill {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kHidden = 64;
constexpr std::uint64_t kExpert = 640;  // more rows than are looked at
constexpr std::size_t kExperts = 5;
constexpr std::size_t kLayers = 2;

const char* const kConfig = R"({"architectures": ["Qwen3MoeForCausalLM"],
  "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 32, "intermediate_size": 640,
  "moe_intermediate_size": 640, "num_experts": 5, "num_experts_per_tok": 2,
  "tie_word_embeddings": false})";

// A mixture of experts, its weights not random but not regular.
class Model {
 public:
  Model() {
    add("model.embed_tokens.weight", {32, kHidden});
    add("lm_head.weight", {32, kHidden});
    add("model.norm.weight", {kHidden});
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + ".";
      add(at + "input_layernorm.weight", {kHidden});
      add(at + "post_attention_layernorm.weight", {kHidden});
      add(at + "self_attn.q_norm.weight", {32});
      add(at + "self_attn.k_norm.weight", {32});
      for (const std::string name : {"q", "k", "v", "o"}) {
        add(at + "self_attn." + name + "_proj.weight", {kHidden, kHidden});
      }
      add(at + "mlp.gate.weight", {kExperts, kHidden});
      for (std::size_t expert = 0; expert < kExperts; ++expert) {
        const std::string mlp = at + "mlp.experts." + std::to_string(expert) + ".";
        add(mlp + "gate_proj.weight", {kExpert, kHidden});
        add(mlp + "up_proj.weight", {kExpert, kHidden});
        add(mlp + "down_proj.weight", {kHidden, kExpert});
      }
    }
    test::write_tiny_safetensors(folder_.path() / "model.safetensors", tensors_);
    test::write_text(folder_.path() / "config.json", kConfig);
    checkpoint_ = Checkpoint::open(folder_.path());
    const Recipe recipe = default_recipe(Scheme::kMxfp4, Layout::kQuark);
    for (const Activation& activation : model_architecture(*checkpoint_, recipe).activations) {
      InputStatistics& input = statistics_[activation.recorded_as.front()];
      for (std::size_t column = 0; column < activation.reader_columns; ++column) {
        input.absmean.push_back(std::exp(3 * next()));
      }
    }
    plan_ = make_plan(*checkpoint_, statistics_, recipe);
  }

  // The search on this team; `journal` of earlier runs.
  ScaleTable search(const Team& team, const ChunkLimits& limits, JobJournal&& journal = {}) const {
    const ColumnImportance importance(plan_.architecture,
                                      make_importance(plan_.architecture, statistics_, 0));
    const Context context;
    return search_blocks(
        team, context, *checkpoint_, plan_, statistics_, importance, journal, limits);
  }

  [[nodiscard]] const Plan& plan() const { return plan_; }

  [[nodiscard]] std::filesystem::path folder() const { return folder_.path(); }

 private:
  double next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(state_ >> 40) / 0x1p24 - 0.5;
  }

  void add(const std::string& name, const std::vector<std::uint64_t>& shape) {
    std::uint64_t size = 1;
    for (const std::uint64_t dimension : shape) {
      size *= dimension;
    }
    std::vector<float> values;
    for (std::uint64_t i = 0; i < size; ++i) {
      values.push_back(static_cast<float>(0.1 * next() * std::exp(2 * next())));
    }
    tensors_.push_back(test::bf16_tensor(name, shape, values));
  }

  test::TemporaryFolder folder_;
  std::uint64_t state_ = 1;
  std::vector<test::TinyTensor> tensors_;
  std::optional<Checkpoint> checkpoint_;
  Statistics statistics_;
  Plan plan_;
};

// This rank alone, as if it were the job.
Team solo() {
  const Communicator world = Communicator::world();
  Communicator alone = world.split_by_node(1);
  Communicator node = alone.split_by_node(1);
  return {std::move(alone), std::move(node), 0, {1}, 1, {}};
}

// A group of experts has nine or ten chunks, and each is a wave of its own or all are one.
ChunkLimits small_chunks(std::uint64_t wave_bytes) {
  return {kExpert * kHidden, 9, wave_bytes};
}

void expect_same(const ScaleTable& a, const ScaleTable& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, group] : a) {
    const GroupScales& other = b.at(name);
    EXPECT_EQ(group.reason, other.reason);
    EXPECT_TRUE(std::ranges::equal(group.s,
                                   other.s,
                                   {},
                                   std::bit_cast<std::uint32_t, float>,
                                   std::bit_cast<std::uint32_t, float>))
        << name;
    EXPECT_TRUE(std::ranges::equal(group.errors,
                                   other.errors,
                                   {},
                                   std::bit_cast<std::uint64_t, double>,
                                   std::bit_cast<std::uint64_t, double>))
        << name;
  }
}

TEST(SearchBlocks, TheSameBitsWhateverRanksNodesThreadsAndWaves) {
  const Model model;
  const std::vector<SearchChunk> chunks = cut_into_chunks(model.plan(), small_chunks(1));
  EXPECT_EQ(std::ranges::count(chunks, false, &SearchChunk::is_whole), 2 * 9);
  const ScaleTable wanted = model.search(solo(), small_chunks(std::uint64_t{1} << 30));
  for (const int threads : {1, 3}) {
    for (const int ranks_per_node : {0, 1, 2}) {
      for (const std::uint64_t wave_bytes : {std::uint64_t{1}, std::uint64_t{1} << 30}) {
        expect_same(model.search(make_team(threads, ranks_per_node), small_chunks(wave_bytes)),
                    wanted);
      }
    }
  }
}

TEST(SearchBlocks, CutOrNotAGroupHasTheSameErrorsButForRounding) {
  const Model model;
  const ScaleTable whole = model.search(solo(), {});
  const ScaleTable cut = model.search(solo(), small_chunks(1));
  bool differs = false;
  for (const auto& [name, group] : whole) {
    const GroupScales& other = cut.at(name);
    EXPECT_EQ(group.s.size(), other.s.size());
    ASSERT_EQ(group.errors.size(), other.errors.size());
    for (std::size_t i = 0; i < group.errors.size(); ++i) {
      EXPECT_NEAR(group.errors[i], other.errors[i], 1e-12 * group.errors[i]) << name;
      differs = differs || group.errors[i] != other.errors[i];
    }
    for (std::size_t channel = 0; channel < group.s.size(); ++channel) {
      EXPECT_NEAR(group.s[channel], other.s[channel], 1e-6F * group.s[channel]) << name;
    }
  }
  EXPECT_TRUE(differs);  // or this test compared nothing
}

TEST(SearchBlocks, AFinishedGroupIsTakenFromTheJournal) {
  const Model model;
  const Team team = make_team(1, 1);
  const ChunkLimits limits = small_chunks(1);
  const ScaleTable wanted = model.search(team, limits);
  const std::vector<SearchChunk> chunks = cut_into_chunks(model.plan(), limits);
  const SearchChunk& cut = *std::ranges::find(chunks, false, &SearchChunk::is_whole);
  // A result that no search finds.
  const std::vector<double> found(2 + kHidden, 0.75);
  const std::filesystem::path folder = model.folder() / "journal";
  std::filesystem::create_directory(folder);
  {
    JournalWriter writer(folder, 0, 0, std::chrono::milliseconds(0));
    writer.add(JournalPhase::kSearch, cut.first, found);
  }
  JobJournal journal(JournalContents(read_journals(folder), model.plan().search_tasks.size(), 0),
                     nullptr);
  const ScaleTable resumed = model.search(team, limits, std::move(journal));
  const std::string& name = model.plan().architecture.fold_groups[cut.group].name;
  EXPECT_THAT(resumed.at(name).s, testing::Each(0.75F));
  for (const auto& [other, group] : wanted) {
    if (other != name) {
      EXPECT_EQ(group.s, resumed.at(other).s);
    }
  }
}

TEST(SearchBlocks, WhatIsDoneIsNotedForTheNextRun) {
  const Model model;
  const Team team = make_team(1, 1);
  const ChunkLimits limits = small_chunks(1);
  const std::filesystem::path folder = model.folder() / "journal";
  std::filesystem::create_directory(folder);
  auto writer = std::make_unique<JournalWriter>(folder, 0, 0, std::chrono::milliseconds(0));
  (void)model.search(team, limits, JobJournal({}, std::move(writer)));
  const std::vector<std::byte> mine = read_journals(folder);
  std::vector<std::byte> all;
  for (const std::vector<std::byte>& part : team.world.gather_all(mine)) {
    all.insert(all.end(), part.begin(), part.end());
  }
  const std::size_t tasks = model.plan().search_tasks.size();
  EXPECT_EQ(JournalContents(all, tasks, 0).num_tasks(JournalPhase::kSearch), tasks);
}

TEST(SearchBlocks, ADamagedWeightIsNamedOnAllRanks) {
  const Model model;
  const std::filesystem::path file = model.folder() / "model.safetensors";
  std::string bytes = test::read_text(file);
  bytes[bytes.size() - 1] = '\x7f';  // the last down projection's last weight
  bytes[bytes.size() - 2] = '\xc0';
  test::write_text(file, bytes);
  const Team team = make_team(2, 1);
  try {
    (void)model.search(team, small_chunks(1));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_THAT(error.message(),
                HasSubstr("layers.1.mlp.experts.4.down_proj.weight: row 63, column 639"));
  }
}

}  // namespace
}  // namespace quantmill
