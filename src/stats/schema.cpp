#include "stats/schema.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/pattern.h"
#include "base/version.h"

namespace quantmill {

void write_schema(const h5::GroupWriter& root, std::string_view kind, std::int64_t schema) {
  root.write_text("quantmill_kind", kind);
  root.write_attribute("quantmill_schema", schema);
  root.write_text("quantmill_version", program_version());
}

std::int64_t check_schema(const h5::Group& root,
                          std::string_view kind,
                          std::int64_t oldest,
                          std::int64_t newest) {
  if (!root.has_attribute("quantmill_kind")) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: the attribute quantmill_kind is missing; the file was not written "
                            "by quantmill, a {} file is wanted",
                            root.describe(),
                            kind));
  }
  const std::string found_kind = root.read_text("quantmill_kind");
  if (found_kind != kind) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "{}: the file's kind is \"{}\"; \"{}\" is wanted", root.describe(), found_kind, kind));
  }
  const auto found_schema = root.read_attribute<std::int64_t>("quantmill_schema");
  if (found_schema < oldest || found_schema > newest) {
    throw Error(ErrorCode::kInput,
                fmt::format("{}: the file has schema {}; this program reads schema {}; use the "
                            "version of quantmill that wrote the file",
                            root.describe(),
                            found_schema,
                            oldest == newest ? fmt::format("{}", newest)
                                             : fmt::format("{} to {}", oldest, newest)));
  }
  return found_schema;
}

std::string encode_object_name(std::string_view name) {
  if (name == ".") {
    return "%2E";
  }
  return replace_all(replace_all(std::string(name), "%", "%25"), "/", "%2F");
}

std::string decode_object_name(std::string_view encoded, std::string_view where) {
  std::string name = encoded == "%2E"
                         ? "."
                         : replace_all(replace_all(std::string(encoded), "%2F", "/"), "%25", "%");
  if (encode_object_name(name) != encoded) {
    throw Error(
        ErrorCode::kInput,
        fmt::format(
            "{}: \"{}\" is not an encoded name (\"%\" is written \"%25\")", where, encoded));
  }
  return name;
}

}  // namespace quantmill
