#include "jobs/documentation.h"

#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/version.h"

namespace quantmill {
namespace {

// A command with the words that lead to it: "quantmill stats import".
struct Command {
  std::string words;
  const CLI::App* app = nullptr;
};

void collect(const CLI::App& app, const std::string& words, std::vector<Command>& commands) {
  commands.push_back({words, &app});
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    collect(*command, words + " " + command->get_name(), commands);
  }
}

std::vector<Command> all_commands(const CLI::App& app) {
  std::vector<Command> commands;
  collect(app, app.get_name(), commands);
  return commands;
}

// "--memory" and "-o" as they are typed.
std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) {
    names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    names.push_back("--" + name);
  }
  return names;
}

bool is_positional(const CLI::Option& option) {
  return spellings(option).empty();
}

std::string names_of(const CLI::Option& option) {
  return is_positional(option) ? option.get_name()
                               : fmt::format("{}", fmt::join(spellings(option), ", "));
}

bool takes_value(const CLI::Option& option) {
  return !is_positional(option) && option.get_items_expected_max() > 0;
}

// Text for troff: nothing of it is an instruction.
std::string for_man(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else if ((c == '.' || c == '\'') && (escaped.empty() || escaped.back() == '\n')) {
      escaped += fmt::format("\\&{}", c);
    } else {
      escaped += c;
    }
  }
  return escaped;
}

int print_man(const CLI::App& app) {
  std::cout << fmt::format(
                   ".TH QUANTMILL 1 \"\" \"quantmill {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n",
                   program_version(),
                   for_man(app.get_name()),
                   for_man(app.get_description()))
            << ".SH SYNOPSIS\n.B quantmill\n.I COMMAND\n[options]\n.PP\n.B mpirun \\-np\n.I N\n.B "
               "quantmill quantize\n.I SRC OUT\n[options]\n.SH COMMANDS\n";
  for (const Command& command : all_commands(app)) {
    if (command.app == &app) {
      continue;
    }
    std::cout << fmt::format(
        ".SS {}\n{}\n", for_man(command.words), for_man(command.app->get_description()));
    for (const CLI::Option* option : command.app->get_options()) {
      std::cout << fmt::format(
          ".TP\n.B {}{}\n{}\n",
          for_man(names_of(*option)),
          takes_value(*option) ? fmt::format(" \\fI{}\\fR", for_man(option->get_type_name())) : "",
          for_man(option->get_description()));
    }
    if (!command.app->get_footer().empty()) {
      std::cout << ".PP\n" << for_man(command.app->get_footer()) << '\n';
    }
  }
  return 0;
}

// For each command the words that can come next; else files.
int print_bash(const CLI::App& app) {
  std::cout << "# bash completion of quantmill: source <(quantmill completion bash)\n"
               "_quantmill() {\n"
               "  local word=${COMP_WORDS[COMP_CWORD]} path=quantmill next i\n"
               "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
               "    next=\"$path ${COMP_WORDS[i]}\"\n"
               "    [[ -n ${_quantmill_words[$next]+x} ]] && path=$next\n"
               "  done\n"
               "  COMPREPLY=($(compgen -W \"${_quantmill_words[$path]}\" -- \"$word\"))\n"
               "  [[ ${#COMPREPLY[@]} -gt 0 || $word == -* ]] || compopt -o default\n"
               "}\n"
               "declare -gA _quantmill_words=(\n";
  for (const Command& command : all_commands(app)) {
    std::vector<std::string> words;
    for (const CLI::App* below :
         command.app->get_subcommands([](const CLI::App*) { return true; })) {
      words.push_back(below->get_name());
    }
    for (const CLI::Option* option : command.app->get_options()) {
      for (const std::string& name : spellings(*option)) {
        words.push_back(name);
      }
    }
    std::cout << fmt::format("  [\"{}\"]=\"{}\"\n", command.words, fmt::join(words, " "));
  }
  std::cout << ")\ncomplete -F _quantmill quantmill\n";
  return 0;
}

}  // namespace

void add_documentation_commands(CLI::App& app, std::function<int()>& action) {
  app.add_subcommand("man", "Print the manual page: quantmill man > quantmill.1")
      ->callback([&app, &action] { action = [&app] { return print_man(app); }; });
  CLI::App* completion = app.add_subcommand(
      "completion", "Print completion for a shell: source <(quantmill completion bash)");
  completion->require_subcommand(1);
  completion->add_subcommand("bash", "For bash")->callback([&app, &action] {
    action = [&app] { return print_bash(app); };
  });
}

}  // namespace quantmill
