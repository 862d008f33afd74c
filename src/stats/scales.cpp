#include "stats/scales.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "stats/schema.h"

namespace quantmill {

namespace {

constexpr std::string_view kKind = "scales";
constexpr std::int64_t kSchema = 2;
constexpr std::int64_t kOldestSchema = 1;
// Values of a table that are read at once, or one row.
constexpr std::uint64_t kReadTogether = std::uint64_t{1} << 20;

// Of each T in `values`: `is_good`, or kInput with `what` it is of and `wanted`.
template <typename T, typename IsGood>
void check_values(const std::vector<T>& values,
                  IsGood is_good,
                  const std::string& where,
                  std::string_view what,
                  std::string_view wanted) {
  const auto bad = std::ranges::find_if_not(values, is_good);
  if (bad != values.end()) {
    throw Error(
        ErrorCode::kInput,
        fmt::format("{}: {} {} is {}; {}", where, what, bad - values.begin(), *bad, wanted));
  }
}

void check_group(const GroupScales& scales, const std::string& where) {
  if (scales.alphas.size() != scales.errors.size() || scales.betas.size() != scales.errors.size()) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: has {} alphas, {} betas and {} errors; one of each is wanted",
                            where,
                            scales.alphas.size(),
                            scales.betas.size(),
                            scales.errors.size()));
  }
  check_values(
      scales.s,
      [](float s) { return std::isfinite(s) && s > 0; },
      where,
      "the scale of channel",
      "it must be finite and positive");
}

void check_maxima(const std::vector<double>& absmax, const std::string& where) {
  check_values(
      absmax,
      [](double value) { return std::isfinite(value) && value >= 0; },
      where,
      "the maximum of column",
      "it must be finite and not negative");
}

void check_importance(const std::vector<float>& values, const std::string& where) {
  check_values(
      values,
      [](float value) { return std::isfinite(value) && value > 0; },
      where,
      "the importance of column",
      "it must be finite and positive");
}

// Schema 1: a row of /groups.
GroupScales read_group(const h5::Group& group) {
  GroupScales scales;
  scales.s = group.read_dataset<float>("s");
  scales.alphas = group.read_dataset<double>("alphas");
  scales.errors = group.read_dataset<double>("errors");
  scales.alpha = group.read_attribute<double>("alpha");
  scales.reason = group.read_text("reason");
  scales.betas.resize(scales.alphas.size(), 0.0);
  if (group.has("betas")) {  // older programs had none
    scales.betas = group.read_dataset<double>("betas");
    scales.beta = group.read_attribute<double>("beta");
  }
  return scales;
}

// Schema 1: a table from what read_row makes of each object of the group.
template <typename Row, typename ReadRow, typename Check>
std::map<std::string, Row> read_objects(const h5::Group& group, ReadRow read_row, Check check) {
  std::map<std::string, Row> table;
  for (const std::string& object : group.names()) {
    Row row = read_row(object);
    check(row, group.describe(object));
    table.emplace(decode_object_name(object, group.describe()), std::move(row));
  }
  return table;
}

template <typename Row>
std::vector<std::string> names_of(const std::map<std::string, Row>& table) {
  std::vector<std::string> names;
  names.reserve(table.size());
  for (const auto& [name, row] : table) {
    names.push_back(name);
  }
  return names;
}

// `values_of` gives the values of a row of `table`.
template <typename T, typename Table, typename ValuesOf>
void write_rows(const h5::GroupWriter& group,
                const std::string& name,
                const std::string& offsets_name,
                const Table& table,
                ValuesOf values_of) {
  std::vector<std::span<const T>> rows;
  std::vector<std::uint64_t> offsets = {0};
  for (const auto& [key, row] : table) {
    const std::vector<T>& values = values_of(row);
    rows.emplace_back(values);
    offsets.push_back(offsets.back() + values.size());
  }
  group.write_parts<T>(name, rows);
  if (!offsets_name.empty()) {
    group.write_dataset(offsets_name, offsets);
  }
}

void write_group_table(const h5::GroupWriter& group, const ScaleTable& scales) {
  std::vector<double> alpha;
  std::vector<double> beta;
  std::vector<std::string> reasons;
  for (const auto& [name, row] : scales) {
    check_invariant(row.alphas.size() == row.errors.size() && row.betas.size() == row.errors.size(),
                    "a fold group has not one error for each candidate");
    alpha.push_back(row.alpha);
    beta.push_back(row.beta);
    reasons.push_back(row.reason);
  }
  group.write_text_list("names", names_of(scales));
  write_rows<float>(
      group, "s", "s_offsets", scales, [](const GroupScales& row) -> const auto& { return row.s; });
  const auto write = [&](const std::string& name,
                         const std::string& offsets,
                         std::vector<double> GroupScales::*values) {
    write_rows<double>(
        group, name, offsets, scales, [&](const GroupScales& row) -> const auto& {
          return row.*values;
        });
  };
  write("alphas", "candidate_offsets", &GroupScales::alphas);
  write("betas", "", &GroupScales::betas);
  write("errors", "", &GroupScales::errors);
  group.write_dataset("alpha", alpha);
  group.write_dataset("beta", beta);
  group.write_text_list("reasons", reasons);
}

std::vector<std::string> read_names(const h5::Group& group) {
  std::vector<std::string> names = group.read_text_list("names");
  const auto unsorted = std::ranges::adjacent_find(names, std::ranges::greater_equal());
  if (unsorted != names.end()) {
    throw Error(ErrorCode::kInput,
                fmt::format(R"({}: "{}" stands before "{}"; names are in ascending order)",
                            group.describe("names"),
                            *unsorted,
                            *std::next(unsorted)));
  }
  return names;
}

// Of `num_rows` rows of a dataset of T.
template <typename T>
std::vector<std::uint64_t> read_offsets(const h5::Group& group,
                                        const std::string& name,
                                        const std::string& values_name,
                                        std::size_t num_rows) {
  std::vector<std::uint64_t> offsets = group.read_dataset<std::uint64_t>(name);
  if (offsets.size() != num_rows + 1 || offsets.front() != 0 || !std::ranges::is_sorted(offsets) ||
      offsets.back() != group.dataset_size<T>(values_name)) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: does not divide the {} values of {} among {} rows",
                            group.describe(name),
                            group.dataset_size<T>(values_name),
                            values_name,
                            num_rows));
  }
  return offsets;
}

// `take(i, values)` takes the values of row i.
template <typename T, typename Take>
void read_rows(const h5::Group& group,
               const std::string& name,
               const std::vector<std::uint64_t>& offsets,
               Take take) {
  const std::size_t num_rows = offsets.size() - 1;
  for (std::size_t first = 0; first < num_rows;) {
    std::size_t end = first + 1;
    while (end < num_rows && offsets[end + 1] - offsets[first] <= kReadTogether) {
      ++end;
    }
    const std::vector<T> values =
        group.read_dataset<T>(name, h5::Range{offsets[first], offsets[end] - offsets[first]});
    for (std::size_t row = first; row < end; ++row) {
      const auto at = [&](std::size_t offset) {
        return values.begin() + static_cast<std::ptrdiff_t>(offset - offsets[first]);
      };
      take(row, std::vector<T>(at(offsets[row]), at(offsets[row + 1])));
    }
    first = end;
  }
}

// One value a row.
template <typename T>
void check_num_rows(const std::vector<T>& column,
                    std::size_t num_rows,
                    const h5::Group& group,
                    std::string_view name) {
  if (column.size() != num_rows) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: has {} values; one for each of {} names is wanted",
                            group.describe(name),
                            column.size(),
                            num_rows));
  }
}

std::string describe_row(const h5::Group& group, const std::string& name) {
  return fmt::format("{}: {}", group.describe(), name);
}

// The same member of every row, from a dataset that has one after the other.
template <typename T>
void read_members(const h5::Group& group,
                  const std::string& name,
                  const std::string& offsets_name,
                  std::vector<T> GroupScales::*values,
                  std::vector<GroupScales>& rows) {
  const std::vector<std::uint64_t> offsets =
      read_offsets<T>(group, offsets_name, name, rows.size());
  read_rows<T>(group, name, offsets, [&](std::size_t row, std::vector<T> found) {
    rows[row].*values = std::move(found);
  });
}

ScaleTable read_group_table(const h5::Group& group) {
  const std::vector<std::string> names = read_names(group);
  std::vector<GroupScales> rows(names.size());
  read_members(group, "s", "s_offsets", &GroupScales::s, rows);
  for (const auto& [name, values] : {std::pair("alphas", &GroupScales::alphas),
                                     std::pair("betas", &GroupScales::betas),
                                     std::pair("errors", &GroupScales::errors)}) {
    read_members(group, name, "candidate_offsets", values, rows);
  }
  const std::vector<double> alpha = group.read_dataset<double>("alpha");
  const std::vector<double> beta = group.read_dataset<double>("beta");
  const std::vector<std::string> reasons = group.read_text_list("reasons");
  check_num_rows(alpha, names.size(), group, "alpha");
  check_num_rows(beta, names.size(), group, "beta");
  check_num_rows(reasons, names.size(), group, "reasons");
  ScaleTable table;
  for (std::size_t row = 0; row < names.size(); ++row) {
    rows[row].alpha = alpha[row];
    rows[row].beta = beta[row];
    rows[row].reason = reasons[row];
    check_group(rows[row], describe_row(group, names[row]));
    table.emplace_hint(table.end(), names[row], std::move(rows[row]));
  }
  return table;
}

// A table of one dataset.
template <typename T, typename Check>
std::map<std::string, std::vector<T>> read_table(const h5::Group& group,
                                                 const std::string& values_name,
                                                 Check check) {
  const std::vector<std::string> names = read_names(group);
  std::map<std::string, std::vector<T>> table;
  read_rows<T>(group,
               values_name,
               read_offsets<T>(group, "offsets", values_name, names.size()),
               [&](std::size_t row, std::vector<T> values) {
                 check(values, describe_row(group, names[row]));
                 table.emplace_hint(table.end(), names[row], std::move(values));
               });
  return table;
}

}  // namespace

void write_scales(const std::filesystem::path& file,
                  const ScaleTable& scales,
                  const InputMaxima& inputs,
                  const ImportanceTable& importance) {
  h5::Writer writer(file);
  {
    const h5::GroupWriter root = writer.root();
    write_schema(root, kKind, kSchema);
    write_group_table(root.create_group("groups"), scales);
    const auto itself = [](const auto& row) -> const auto& {
      return row;
    };
    if (!inputs.empty()) {
      const h5::GroupWriter maxima = root.create_group("inputs");
      maxima.write_text_list("names", names_of(inputs));
      write_rows<double>(maxima, "absmax", "offsets", inputs, itself);
    }
    if (!importance.empty()) {
      const h5::GroupWriter columns = root.create_group("importance");
      columns.write_text_list("names", names_of(importance));
      write_rows<float>(columns, "values", "offsets", importance, itself);
    }
  }
  writer.commit();
}

ScaleTable read_scales(const std::filesystem::path& file) {
  const h5::Reader reader(file);
  const h5::Group root = reader.root();
  const std::int64_t schema = check_schema(root, kKind, kOldestSchema, kSchema);
  const h5::Group groups = root.open_group("groups");
  if (schema == kSchema) {
    return read_group_table(groups);
  }
  return read_objects<GroupScales>(
      groups,
      [&](const std::string& object) { return read_group(groups.open_group(object)); },
      check_group);
}

InputMaxima read_input_maxima(const std::filesystem::path& file) {
  const h5::Reader reader(file);
  const h5::Group root = reader.root();
  const std::int64_t schema = check_schema(root, kKind, kOldestSchema, kSchema);
  if (!root.has("inputs")) {
    return {};
  }
  const h5::Group inputs = root.open_group("inputs");
  if (schema == kSchema) {
    return read_table<double>(inputs, "absmax", check_maxima);
  }
  return read_objects<std::vector<double>>(
      inputs,
      [&](const std::string& object) {
        return inputs.open_group(object).read_dataset<double>("absmax");
      },
      check_maxima);
}

ImportanceTable read_importance(const std::filesystem::path& file) {
  const h5::Reader reader(file);
  const h5::Group root = reader.root();
  const std::int64_t schema = check_schema(root, kKind, kOldestSchema, kSchema);
  if (!root.has("importance")) {
    return {};
  }
  const h5::Group columns = root.open_group("importance");
  if (schema == kSchema) {
    return read_table<float>(columns, "values", check_importance);
  }
  return read_objects<std::vector<float>>(
      columns,
      [&](const std::string& object) { return columns.read_dataset<float>(object); },
      check_importance);
}

}  // namespace quantmill
