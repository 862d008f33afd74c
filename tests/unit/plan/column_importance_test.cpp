#include "plan/column_importance.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quantmill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ModelTensor linear(std::uint64_t rows, std::uint64_t cols) {
  ModelTensor tensor;
  tensor.role = TensorRole::kLinear;
  tensor.shape = {rows, cols};
  return tensor;
}

Activation activation(const std::string& name,
                      ColumnMap columns,
                      std::vector<std::size_t> readers) {
  Activation result;
  result.name = name;
  result.statistics = name;
  result.columns = columns;
  result.readers = std::move(readers);
  result.reader_columns = 3;
  return result;
}

// Two readers of three columns. "block" and "context" are read at the same two, by the first;
// "rest" at the last, by both.
ResolvedArchitecture architecture() {
  ResolvedArchitecture result;
  result.tensors = {linear(2, 3), linear(2, 3), linear(2, 3)};
  result.activations = {activation("block", {0, 1, 1, 2}, {0}),
                        activation("context", {0, 1, 1, 2}, {0}),
                        activation("rest", {2, 1, 1, 1}, {0, 1})};
  return result;
}

InputStatistics input(std::vector<double> absmean, std::vector<double> sqmean) {
  InputStatistics result;
  result.absmean = std::move(absmean);
  result.sqmean = std::move(sqmean);
  return result;
}

Statistics counted(std::uint64_t block, std::uint64_t context) {
  Statistics statistics{{"block", input({1, 1, 1}, {4, 1, 1})},
                        {"context", input({1, 1, 1}, {9, 16, 1})},
                        {"rest", input({1, 1, 5}, {})}};
  statistics["block"].count = block;
  statistics["context"].count = context;
  statistics["rest"].count = 1;
  for (auto& [name, record] : statistics) {
    record.has_count = true;
  }
  return statistics;
}

TEST(ColumnImportance, IsTheRootOfTheMeanSquareOrTheMean) {
  const Statistics statistics{{"block", input({1, 1, 1}, {4, 9, 1})},
                              {"rest", input({1, 1, 5}, {})}};
  const ResolvedArchitecture model = architecture();
  const ImportanceTable table = make_importance(model, statistics, 32);
  EXPECT_EQ(table.size(), 2U);
  const ColumnImportance importance(model, table);
  EXPECT_THAT(importance.of(0), ElementsAre(2, 3, 5));
  EXPECT_THAT(importance.of(1), ElementsAre(1, 1, 5));  // nothing is known of the first two
  EXPECT_THAT(importance.of(2), IsEmpty());
}

TEST(ColumnImportance, SeveralActivationsCountByTheirTokens) {
  const ResolvedArchitecture model = architecture();
  const ColumnImportance importance(model, make_importance(model, counted(4, 1), 0));
  EXPECT_THAT(importance.of(0), ElementsAre(5, std::sqrt(20.0F), 5));  // 4 * 4 + 9, 4 * 1 + 16
  const ColumnImportance few(model, make_importance(model, counted(4, 1), 2));
  EXPECT_THAT(few.of(0), ElementsAre(4, 2, 1));
}

TEST(ColumnImportance, SilentChannelsKeepAMillionthOfTheMean) {
  const ResolvedArchitecture model = architecture();
  Statistics statistics{{"block", input({1, 1, 1}, {0, 3, 0})}};
  const ColumnImportance importance(model, make_importance(model, statistics, 0));
  EXPECT_THAT(importance.of(0), ElementsAre(1e-3F, std::sqrt(3.0F), 1));
  statistics["block"].sqmean = {0, 0, 0};
  EXPECT_THAT(make_importance(model, statistics, 0), IsEmpty());
}

TEST(ColumnImportance, RefusesWhatIsOfAnotherModel) {
  const ResolvedArchitecture model = architecture();
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInput ? error.message() : "";
    }
    return "";
  };
  const Statistics statistics{{"block", input({1, 1}, {})}};
  EXPECT_THAT(refusal([&] { (void)make_importance(model, statistics, 0); }),
              HasSubstr("'block' have 2 channels, but the weights that read it have 3"));
  EXPECT_THAT(refusal([&] {
                ColumnImportance(model, {{"block", {1}}});
              }),
              HasSubstr("'block' has 1 columns, but its readers have 2"));
  EXPECT_THAT(refusal([&] {
                ColumnImportance(model, {{"other", {1}}});
              }),
              HasSubstr("known for 1 activations, of which the model has only 0"));
}

}  // namespace
}  // namespace quantmill
