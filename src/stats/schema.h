#pragma once

// What every HDF5 file of quantmill begins with, and how names become names of HDF5 objects.

#include <cstdint>
#include <string>
#include <string_view>

#include "stats/h5_reader.h"
#include "stats/h5_writer.h"

namespace quantmill {

// Root attributes quantmill_kind (text), quantmill_schema (i64), quantmill_version (text).
void write_schema(const h5::GroupWriter& root, std::string_view kind, std::int64_t schema);

// The file's schema. kInput if the file is of another kind, or of a schema that is not in [oldest,
// newest].
std::int64_t check_schema(const h5::Group& root,
                          std::string_view kind,
                          std::int64_t oldest,
                          std::int64_t newest);

// "%" becomes "%25", "/" becomes "%2F", and the name "." (an HDF5 path to the group itself) "%2E".
std::string encode_object_name(std::string_view name);

// The name that encode_object_name made `encoded` of; kInput, calling it `where`, if there is none.
std::string decode_object_name(std::string_view encoded, std::string_view where);

}  // namespace quantmill
