#include "stats/store.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "stats/schema.h"

namespace quantmill {

namespace {

constexpr std::string_view kKind = "statistics";
constexpr std::int64_t kSchema = 1;
constexpr const char* kReplicatedText = "replicated";
constexpr const char* kRowText = "row";

void write_input(const h5::GroupWriter& group,
                 const InputStatistics& input,
                 const LowerTriangle& gram) {
  group.write_dataset("absmean", input.absmean);
  if (!input.sqmean.empty()) {
    group.write_dataset("sqmean", input.sqmean);
  }
  if (!input.absmax.empty()) {
    group.write_dataset("absmax", input.absmax);
  }
  if (input.has_count) {
    group.write_attribute("count", input.count);
  }
  if (input.gram_tokens > 0) {
    group.write_dataset("gram", gram);
    group.write_attribute("gram_tokens", input.gram_tokens);
  }
  const bool is_row = input.partition == Partition::kRow;
  group.write_text("partition", is_row ? kRowText : kReplicatedText);
  if (is_row) {
    group.write_attribute("part_channels", std::span(input.part_channels));
  }
  group.write_text("source", input.source);
}

InputStatistics read_input(const h5::Group& group) {
  InputStatistics input;
  input.absmean = group.read_dataset<double>("absmean");
  if (group.has("sqmean")) {
    input.sqmean = group.read_dataset<double>("sqmean");
  }
  if (group.has("absmax")) {
    input.absmax = group.read_dataset<double>("absmax");
  }
  input.has_count = group.has_attribute("count");
  if (input.has_count) {
    input.count = group.read_attribute<std::uint64_t>("count");
  }
  if (group.has("gram")) {
    input.gram_tokens = group.read_attribute<std::uint64_t>("gram_tokens");
  }
  const std::string partition = group.read_text("partition");
  if (partition == kRowText) {
    input.partition = Partition::kRow;
    input.part_channels = group.read_attribute_list("part_channels");
  } else if (partition != kReplicatedText) {
    throw Error(ErrorCode::kInput,
                fmt::format(R"({}: is "{}"; "{}" or "{}" is wanted)",
                            group.describe("partition"),
                            partition,
                            kReplicatedText,
                            kRowText));
  }
  input.source = group.read_text("source");
  return input;
}

}  // namespace

void write_statistics(const std::filesystem::path& file,
                      const Statistics& statistics,
                      const GramOf& gram_of) {
  check_statistics(statistics);
  h5::Writer writer(file);
  {
    const h5::GroupWriter root = writer.root();
    write_schema(root, kKind, kSchema);
    const h5::GroupWriter inputs = root.create_group("inputs");
    for (const auto& [name, input] : statistics) {
      write_input(inputs.create_group(encode_object_name(name)),
                  input,
                  input.gram_tokens > 0 ? gram_of(name) : LowerTriangle());
    }
  }
  writer.commit();
}

Statistics read_statistics(const std::filesystem::path& file) {
  const h5::Reader reader(file);
  const h5::Group root = reader.root();
  check_schema(root, kKind, kSchema, kSchema);
  const h5::Group inputs = root.open_group("inputs");
  Statistics statistics;
  for (const std::string& object : inputs.names()) {
    std::string name = decode_object_name(object, inputs.describe());
    statistics.emplace(std::move(name), read_input(inputs.open_group(object)));
  }
  with_context(fmt::format("\"{}\"", file.string()), [&] { check_statistics(statistics); });
  return statistics;
}

}  // namespace quantmill
