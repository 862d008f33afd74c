// Any bytes as a manifest, and as the fingerprint of a job.

#include <string>

#include "fuzz.h"
#include "pipeline/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantmill;
  const std::string text(fuzz::as_text(data, size));
  fuzz::only_input_errors([&] {
    const Manifest manifest = parse_manifest(text, "quantmill_manifest.json");
    fuzz::require(parse_fingerprint(print_fingerprint(manifest.inputs)) == manifest.inputs,
                  "a printed fingerprint reads back");
    fuzz::require(describe_difference(manifest.inputs, manifest.inputs).empty(),
                  "a fingerprint is no other");
  });
  fuzz::only_input_errors([&] {
    const Fingerprint fingerprint = parse_fingerprint(text);
    fuzz::require(parse_fingerprint(print_fingerprint(fingerprint)) == fingerprint,
                  "a printed fingerprint reads back");
  });
  return 0;
}
