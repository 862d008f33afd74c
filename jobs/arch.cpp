#include "jobs/arch.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "checkpoint/reader.h"
#include "plan/architecture.h"

namespace quantmill {
namespace {

constexpr std::size_t kNamesShown = 20;

int list_architectures() {
  for (const BuiltinArchitecture& builtin : builtin_architectures()) {
    const std::vector<std::string> match = models_of(builtin.json);
    std::cout << fmt::format("{:<16} {}\n", builtin.name, fmt::join(match, ", "));
  }
  return 0;
}

int show_architecture(const std::string& name) {
  std::cout << load_architecture(name);
  return 0;
}

std::string describe_names(std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) {
    return "";
  }
  std::string text = fmt::format("{}: {}\n", what, names.size());
  for (std::size_t i = 0; i < std::min(names.size(), kNamesShown); ++i) {
    text += fmt::format("  {}\n", names[i]);
  }
  return names.size() > kNamesShown
             ? text + fmt::format("  … {} more\n", names.size() - kNamesShown)
             : text;
}

std::string describe_entries(std::string_view what, const std::vector<EntryMatches>& entries) {
  std::string text = fmt::format("{}: found, absent (optional or by a condition)\n", what);
  for (const EntryMatches& entry : entries) {
    text += fmt::format("  {:>7} {:>7}  {}\n", entry.num_found, entry.num_absent, entry.entry);
  }
  return text;
}

std::string describe_groups(const ResolvedArchitecture& architecture) {
  std::string text = "fold groups: channels, producers, readers\n";
  for (const FoldGroup& group : architecture.fold_groups) {
    std::size_t producers = 0;
    std::size_t readers = 0;
    for (const std::size_t index : group.activations) {
      producers += architecture.activations[index].producer ? 1U : 0U;
      readers += architecture.activations[index].readers.size();
    }
    text += fmt::format("  {:>7} {:>4} {:>5}  {}{}\n",
                        group.num_channels,
                        producers,
                        readers,
                        group.name,
                        group.no_fold_reason.empty()
                            ? ""
                            : fmt::format("  [never folded: {}]", group.no_fold_reason));
  }
  return text;
}

int check_architecture(const std::string& name_or_file, const std::string& model) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  const std::string config = checkpoint.config_text();
  const std::string json = choose_architecture(name_or_file == "auto" ? "" : name_or_file, config);
  const ArchitectureMatches matches = match_architecture(json, config, checkpoint.tensors());
  std::cout << fmt::format("architecture {}, {} tensors\n",
                           matches.architecture.name,
                           checkpoint.tensors().size())
            << describe_entries("tensors", matches.tensors)
            << describe_entries("activations", matches.activations)
            << describe_groups(matches.architecture);
  if (!matches.variants.empty()) {
    std::cout << fmt::format("variants: {}\n", fmt::join(matches.variants, ", "));
  }
  std::cout << describe_names("copied by a pattern", matches.copied)
            << describe_names("unknown", matches.unknown);
  return matches.unknown.empty() ? 0 : static_cast<int>(ErrorCode::kInput);
}

}  // namespace

void add_arch_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* arch = app.add_subcommand("arch", "Model families that the program knows");
  arch->require_subcommand(1);
  arch->add_subcommand("list", "Name the built-in architectures and the models they are for")
      ->callback([&action] { action = list_architectures; });

  CLI::App* show = arch->add_subcommand("show", "Print the file of a built-in architecture");
  auto shown = std::make_shared<std::string>();
  show->add_option("NAME", *shown, "as `arch list` names it")->required();
  show->callback([shown, &action] { action = [shown] { return show_architecture(*shown); }; });

  CLI::App* check =
      arch->add_subcommand("check", "Say what an architecture finds in a model, entry by entry");
  auto architecture = std::make_shared<std::string>();
  auto model = std::make_shared<std::string>();
  check->add_option("ARCH", *architecture, "a JSON file, a built-in name, or auto: by config.json")
      ->required();
  check->add_option("MODEL", *model, "folder of a checkpoint; only headers are read")->required();
  check->callback([architecture, model, &action] {
    action = [architecture, model] { return check_architecture(*architecture, *model); };
  });
}

}  // namespace quantmill
