#include "stats/scales.h"

#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "stats/schema.h"

namespace quantmill {

namespace {

constexpr std::string_view kKind = "scales";
constexpr std::int64_t kSchema = 1;

void write_group(const h5::Group& group, const GroupScales& scales) {
  group.write_dataset("s", scales.s);
  group.write_dataset("alphas", scales.alphas);
  group.write_dataset("errors", scales.errors);
  group.write_attribute("alpha", scales.alpha);
  group.write_text("reason", scales.reason);
}

GroupScales read_group(const h5::Group& group) {
  GroupScales scales;
  scales.s = group.read_dataset<float>("s");
  scales.alphas = group.read_dataset<double>("alphas");
  scales.errors = group.read_dataset<double>("errors");
  scales.alpha = group.read_attribute<double>("alpha");
  scales.reason = group.read_text("reason");
  if (scales.alphas.size() != scales.errors.size()) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: has {} alphas and {} errors; one error per alpha is wanted",
                            group.describe(),
                            scales.alphas.size(),
                            scales.errors.size()));
  }
  for (std::size_t channel = 0; channel < scales.s.size(); ++channel) {
    const float s = scales.s[channel];
    if (!std::isfinite(s) || s <= 0) {
      throw Error(ErrorCode::kInput,
                  fmt::format("{}: the scale of channel {} is {}; it must be finite and positive",
                              group.describe("s"),
                              channel,
                              s));
    }
  }
  return scales;
}

}  // namespace

void write_scales(const std::filesystem::path& file,
                  const ScaleTable& scales,
                  const InputMaxima& inputs) {
  h5::Writer writer(file);
  {
    const h5::Group root = writer.root();
    write_schema(root, kKind, kSchema);
    const h5::Group groups = root.create_group("groups");
    for (const auto& [name, group] : scales) {
      write_group(groups.create_group(encode_object_name(name)), group);
    }
    if (!inputs.empty()) {
      const h5::Group maxima = root.create_group("inputs");
      for (const auto& [name, absmax] : inputs) {
        maxima.create_group(encode_object_name(name)).write_dataset("absmax", absmax);
      }
    }
  }
  writer.commit();
}

ScaleTable read_scales(const std::filesystem::path& file) {
  const h5::Reader reader(file);
  const h5::Group root = reader.root();
  check_schema(root, kKind, kSchema);
  const h5::Group groups = root.open_group("groups");
  ScaleTable table;
  for (const std::string& object : groups.names()) {
    std::string name = decode_object_name(object, groups.describe());
    table.emplace(std::move(name), read_group(groups.open_group(object)));
  }
  return table;
}

InputMaxima read_input_maxima(const std::filesystem::path& file) {
  const h5::Reader reader(file);
  const h5::Group root = reader.root();
  check_schema(root, kKind, kSchema);
  InputMaxima maxima;
  if (!root.has("inputs")) {
    return maxima;
  }
  const h5::Group inputs = root.open_group("inputs");
  for (const std::string& object : inputs.names()) {
    std::string name = decode_object_name(object, inputs.describe());
    const h5::Group input = inputs.open_group(object);
    std::vector<double> absmax = input.read_dataset<double>("absmax");
    for (std::size_t column = 0; column < absmax.size(); ++column) {
      if (!(std::isfinite(absmax[column]) && absmax[column] >= 0)) {
        throw Error(ErrorCode::kInput,
                    fmt::format("{}: column {} is {}; a maximum is finite and not negative",
                                input.describe("absmax"),
                                column,
                                absmax[column]));
      }
    }
    maxima.emplace(std::move(name), std::move(absmax));
  }
  return maxima;
}

}  // namespace quantmill
