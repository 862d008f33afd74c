#include "jobs/inspect.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/json_events.h"
#include "checkpoint/reader.h"
#include "jobs/command_io.h"
#include "jobs/inspect_file.h"
#include "jobs/inspect_tensor.h"

namespace quantmill {

namespace {

using Json = nlohmann::ordered_json;

struct InspectOptions {
  std::string path;
  std::optional<std::string> tensor;
  std::optional<std::string> rows;
  bool as_json = false;
  bool histogram = false;
  bool blocks = false;
};

struct Total {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

// config.json's quantization_config, null if there is none.
Json quantization_config(const InspectOptions& options, const Checkpoint& checkpoint) {
  std::error_code error;
  if (!std::filesystem::is_directory(options.path, error) ||
      !std::filesystem::exists(checkpoint.folder() / "config.json", error)) {
    return nullptr;
  }
  const std::string text = checkpoint.config_text();
  const Json config = with_context((checkpoint.folder() / "config.json").string(), [&] {
    read_json_events(text, [](const JsonEvent&) {});  // is JSON, and not too deep to be printed
    return Json::parse(text);
  });
  const auto found = config.find("quantization_config");
  return found == config.end() ? Json(nullptr) : *found;
}

std::map<std::string, Total> count_by_dtype(const Checkpoint& checkpoint) {
  std::map<std::string, Total> totals;
  for (const SourceTensor& tensor : checkpoint.tensors()) {
    Total& total = totals[std::string(dtype_name(tensor.entry.dtype))];
    ++total.tensors;
    total.bytes += tensor.entry.size_bytes();
  }
  return totals;
}

// 1234567 -> "1,234,567"
std::string with_commas(std::uint64_t number) {
  return number < 1000 ? fmt::format("{}", number)
                       : fmt::format("{},{:03}", with_commas(number / 1000), number % 1000);
}

// The settings that a configuration holds, one a line with its path; unset ones and empty lists are
// left out.
void list_settings(const Json& value, const std::string& path, std::string& text) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      list_settings(member, path.empty() ? key : fmt::format("{}.{}", path, key), text);
    }
  } else if (!value.is_null() && !(value.is_array() && value.empty())) {
    text += fmt::format(
        "  {} = {}\n", path, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

std::string print_table(const Checkpoint& checkpoint, const Json& config) {
  const std::vector<SourceTensor>& tensors = checkpoint.tensors();
  std::vector<std::string> shapes;
  std::size_t name_width = 6;
  std::size_t shape_width = 5;
  for (const SourceTensor& tensor : tensors) {
    shapes.push_back(fmt::format("[{}]", fmt::join(tensor.entry.shape, ", ")));
    name_width = std::max(name_width, tensor.entry.name.size());
    shape_width = std::max(shape_width, shapes.back().size());
  }
  std::string text = fmt::format("{:<{}}  {:<7}  {:<{}}  {:>15}  file\n",
                                 "tensor",
                                 name_width,
                                 "dtype",
                                 "shape",
                                 shape_width,
                                 "bytes");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    text += fmt::format("{:<{}}  {:<7}  {:<{}}  {:>15}  {}\n",
                        tensors[i].entry.name,
                        name_width,
                        dtype_name(tensors[i].entry.dtype),
                        shapes[i],
                        shape_width,
                        with_commas(tensors[i].entry.size_bytes()),
                        checkpoint.shards()[tensors[i].shard].file_name);
  }
  Total all;
  std::string by_dtype;
  for (const auto& [dtype, total] : count_by_dtype(checkpoint)) {
    by_dtype += fmt::format(
        "  {:<7}  {:>6} tensors  {:>19} bytes\n", dtype, total.tensors, with_commas(total.bytes));
    all.tensors += total.tensors;
    all.bytes += total.bytes;
  }
  text += fmt::format("\n{} tensors, {} bytes, {} file{}\n{}",
                      all.tensors,
                      with_commas(all.bytes),
                      checkpoint.shards().size(),
                      checkpoint.shards().size() == 1 ? "" : "s",
                      by_dtype);
  if (!config.is_null()) {
    text += "\nquantization_config\n";
    list_settings(config, "", text);
  }
  return text;
}

std::string print_json(const Checkpoint& checkpoint, const Json& config) {
  Json tensors = Json::array();
  for (const SourceTensor& tensor : checkpoint.tensors()) {
    tensors.push_back({{"name", tensor.entry.name},
                       {"dtype", dtype_name(tensor.entry.dtype)},
                       {"shape", tensor.entry.shape},
                       {"bytes", tensor.entry.size_bytes()},
                       {"file", checkpoint.shards()[tensor.shard].file_name}});
  }
  Json files = Json::array();
  for (const SourceShard& shard : checkpoint.shards()) {
    files.push_back(
        {{"name", shard.file_name}, {"bytes", shard.size_bytes}, {"metadata", shard.metadata}});
  }
  Json totals = Json::object();
  for (const auto& [dtype, total] : count_by_dtype(checkpoint)) {
    totals[dtype] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  }
  return Json{{"tensors", tensors},
              {"files", files},
              {"totals", totals},
              {"quantization_config", config}}
             .dump(1) +
         "\n";
}

int run_inspect(const InspectOptions& options) {
  if (const std::optional<std::string> text = inspect_file(options.path, options.as_json)) {
    if (options.tensor) {
      throw Error(ErrorCode::kUsage, "--tensor is for checkpoints");
    }
    std::cout << *text;
    return 0;
  }
  const Checkpoint checkpoint = open_checkpoint(options.path);
  if (options.tensor) {
    show_tensor(checkpoint,
                {*options.tensor, options.rows, options.as_json, options.histogram, options.blocks},
                std::cout);
  } else {
    const Json config = quantization_config(options, checkpoint);
    std::cout << (options.as_json ? print_json(checkpoint, config)
                                  : print_table(checkpoint, config));
  }
  return 0;
}

}  // namespace

void add_inspect_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Show the tensors of a checkpoint, or the values of one, decoded; or another file of a job");
  auto options = std::make_shared<InspectOptions>();
  command
      ->add_option(
          "PATH",
          options->path,
          "folder of a checkpoint, one .safetensors file, a quantmill_manifest.json, or an "
          "HDF5 file of statistics or scales")
      ->required();
  CLI::Option* tensor =
      command->add_option("--tensor", options->tensor, "show this tensor: statistics and values")
          ->type_name("NAME");
  command->add_option("--rows", options->rows, "rows to show whole, B not included")
      ->type_name("A:B")
      ->needs(tensor);
  command->add_flag("--histogram", options->histogram, "how the values lie between the extremes")
      ->needs(tensor);
  command
      ->add_flag("--blocks",
                 options->blocks,
                 "codes and scales of the rows shown, block by block, as they are stored")
      ->needs(tensor);
  command->add_flag("--json", options->as_json, "print JSON, every value in full precision");
  command->footer(
      "Without --tensor: a table of all tensors, totals by dtype, and the quantization_config.\n"
      "With it: shape, dtype, statistics over the whole tensor, and the start of the first rows.\n"
      "A weight that is stored as codes and scales is decoded. --rows takes A:B, A:, :B or A;\n"
      "with --json and without --rows, all rows are printed.\n"
      "Of statistics (HDF5), `quantmill stats show` tells more.");
  command->callback([options, &action] { action = [options] { return run_inspect(*options); }; });
}

}  // namespace quantmill
