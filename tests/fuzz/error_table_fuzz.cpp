// Any bytes as an error table: refused, or read into one that prints and reads back as itself.

#include <cmath>
#include <string>

#include "fuzz.h"
#include "pipeline/error_table.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  const std::string text(fuzz::as_text(data, size));
  fuzz::only_input_errors([&] {
    const ErrorTable table = parse_error_table(text, "errors.json");
    const std::string printed = print_error_table(table);
    fuzz::require(print_error_table(parse_error_table(printed, "errors.json")) == printed,
                  "a printed table reads back");
    for (const auto& [name, tensor] : table.tensors) {
      for (const auto& [scheme, error] : tensor.errors) {
        fuzz::require(std::isfinite(tensor.relative(scheme)), "an error has a ratio");
      }
    }
  });
  return 0;
}
