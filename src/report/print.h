#pragma once

// A report as JSON, as text for a terminal, and as a page.

#include <optional>
#include <string>

#include "report/report.h"

namespace quantmill {

// Keys are documented in README.md.
std::string report_to_json(const Report& report);

std::string describe_report(const Report& report);

// Side by side: sizes, errors, times; recipe settings that differ; tensors whose error differs
// most.
std::string describe_comparison(const Report& a, const Report& b);

// One HTML file that needs nothing else. `other`: a second report to compare with.
std::string print_page(const Report& report, const std::optional<Report>& other);

}  // namespace quantmill
