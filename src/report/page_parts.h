#pragma once

// Style and script of the report's page: the files of src/report/page, built in by CMake.

#include <string_view>

namespace quantmill {

std::string_view page_style();
std::string_view page_script();

}  // namespace quantmill
