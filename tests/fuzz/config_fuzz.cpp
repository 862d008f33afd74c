// Any bytes as config.json: refused, or rewritten as JSON that is read again and rewritten as
// itself.

#include <string>
#include <vector>

#include "fuzz.h"
#include "plan/architecture.h"
#include "plan/json_text.h"
#include "plan/quark_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  static const std::string dflash2 = load_architecture("dflash2");
  static const std::vector<SourceTensor> no_tensors;
  const std::string config(fuzz::as_text(data, size));
  bool is_json = false;
  fuzz::only_input_errors([&] {
    parse_json(config, "config.json", ErrorCode::kInput);
    is_json = true;
  });
  if (!is_json) {
    return 0;  // what follows says the same, after reading all architectures
  }
  fuzz::only_input_errors([&] {
    const std::string written = output_config(config, Recipe(), {{}}, {"re:.*fc$"});
    fuzz::require(output_config(written, Recipe(), {{}}, {"re:.*fc$"}) == written,
                  "a written config.json reads back");
  });
  fuzz::only_input_errors([&] { find_architecture(config); });
  fuzz::only_input_errors([&] { resolve_architecture(dflash2, config, no_tensors, true); });
  return 0;
}
