// Any bytes as a recipe file: refused, or read into a recipe that prints and reads back as itself.

#include "plan/recipe.h"

#include <string>

#include "base/byte_size.h"
#include "fuzz.h"

namespace quantmill {
namespace {

// A recipe is what a user asks for, so that all refusals are kUsage.
template <typename Body>
void only_usage_errors(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    fuzz::require(error.code() == ErrorCode::kUsage, "a recipe is refused with kUsage");
  }
}

}  // namespace
}  // namespace quantmill

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  const std::string text(fuzz::as_text(data, size));
  only_usage_errors([&] {
    Recipe recipe;
    apply_recipe_json(text, recipe);
    const std::string printed = to_json(recipe);
    Recipe again;
    apply_recipe_json(printed, again);
    fuzz::require(to_json(again) == printed, "a printed recipe reads back");
    check_recipe(recipe);
  });
  only_usage_errors([&] { format_size(parse_size(text)); });
  return 0;
}
