#include "jobs/report.h"

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "report/print.h"
#include "report/report.h"

namespace quantmill {
namespace {

struct ReportCommandOptions {
  std::string out;
  std::string other;
  std::string page;
  std::optional<std::string> statistics;
  bool json = false;
  bool text = false;
  bool no_codes = false;
  int num_threads = 2;
};

// "OUT.report.html" beside OUT: in it, it would be part of the checkpoint.
std::filesystem::path default_page(const std::string& out) {
  std::filesystem::path folder = std::filesystem::absolute(out).lexically_normal();
  if (folder.filename().empty()) {
    folder = folder.parent_path();
  }
  return folder.concat(".report.html");
}

std::string comparison_to_json(const Report& a, const Report& b) {
  return nlohmann::ordered_json{{"a", nlohmann::ordered_json::parse(report_to_json(a))},
                                {"b", nlohmann::ordered_json::parse(report_to_json(b))}}
             .dump(1) +
         "\n";
}

int run_report(const ReportCommandOptions& options) {
  ReportOptions wanted{!options.no_codes, {}, options.num_threads};
  if (options.statistics) {
    wanted.statistics = *options.statistics;
  }
  const Report report = make_report(options.out, wanted);
  std::optional<Report> other;
  if (!options.other.empty()) {
    other = make_report(options.other, wanted);
  }
  if (options.json) {
    std::cout << (other ? comparison_to_json(report, *other) : report_to_json(report));
  } else {
    std::cout << (other ? describe_comparison(report, *other) : describe_report(report));
  }
  if (!options.json && !options.text) {
    const std::filesystem::path page =
        options.page.empty() ? default_page(options.out) : std::filesystem::path(options.page);
    write_text_file(page, print_page(report, other));
    std::cout << fmt::format("page: {}\n", page.string());
  }
  return 0;
}

}  // namespace

void add_report_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand(
      "report",
      "Tell what a job made: sizes, errors, scales, codes, times; as text and as one HTML page");
  auto options = std::make_shared<ReportCommandOptions>();
  command->add_option("OUT", options->out, "folder that quantize made")->required();
  command->add_option("OTHER", options->other, "another one, to compare with");
  CLI::Option* page =
      command
          ->add_option(
              "-o,--output", options->page, "the page (default OUT.report.html beside OUT)")
          ->type_name("FILE");
  CLI::Option* json = command->add_flag("--json", options->json, "print JSON, make no page");
  json->excludes(page);
  command->add_flag("--text", options->text, "print text, make no page")
      ->excludes(page)
      ->excludes(json);
  command
      ->add_option("--stats",
                   options->statistics,
                   "look for outliers in these statistics (default: in what the job weighted "
                   "columns by)")
      ->type_name("FILE");
  command->add_flag(
      "--no-codes", options->no_codes, "do not read the weights: seconds instead of minutes");
  command->add_option("--threads", options->num_threads, "threads (default 2)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command->callback([options, &action] { action = [options] { return run_report(*options); }; });
}

}  // namespace quantmill
