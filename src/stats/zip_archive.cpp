#include "stats/zip_archive.h"

#include <zip.h>

#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {

namespace {

struct ZipEntryTraits {
  using Handle = zip_file_t*;

  static Handle null() noexcept { return nullptr; }

  static void close(Handle entry) noexcept { zip_fclose(entry); }
};

// libzip's description of its own error; owns what the library allocated for it.
class ZipErrorHolder {
 public:
  ZipErrorHolder() { zip_error_init(&error_); }

  ZipErrorHolder(const ZipErrorHolder&) = delete;
  ZipErrorHolder& operator=(const ZipErrorHolder&) = delete;

  ~ZipErrorHolder() { zip_error_fini(&error_); }

  [[nodiscard]] zip_error_t* get() { return &error_; }

  [[noreturn]] void refuse() {
    throw Error(
        ErrorCode::kInput,
        fmt::format("the zip archive is damaged or cut short ({})", zip_error_strerror(&error_)));
  }

 private:
  zip_error_t error_{};
};

// Takes over `source`, which may be null after a failure.
zip* open_source(zip_source_t* source, ZipErrorHolder& error) {
  if (source == nullptr) {
    error.refuse();
  }
  zip* archive = zip_open_from_source(source, ZIP_RDONLY, error.get());
  if (archive == nullptr) {
    zip_source_free(source);
    error.refuse();
  }
  return archive;
}

}  // namespace

void ZipTraits::close(Handle archive) noexcept {
  zip_discard(archive);
}

ZipArchive::ZipArchive(const std::filesystem::path& file)
    : bytes_left_(std::filesystem::file_size(file)) {
  ZipErrorHolder error;
  archive_.reset(open_source(zip_source_file_create(file.c_str(), 0, 0, error.get()), error));
  list_entries();
}

ZipArchive::ZipArchive(std::span<const std::byte> bytes) : bytes_left_(bytes.size()) {
  ZipErrorHolder error;
  archive_.reset(
      open_source(zip_source_buffer_create(bytes.data(), bytes.size(), 0, error.get()), error));
  list_entries();
}

void ZipArchive::list_entries() {
  const zip_int64_t num_entries = zip_get_num_entries(archive_.get(), 0);
  for (zip_uint64_t index = 0; static_cast<zip_int64_t>(index) < num_entries; ++index) {
    const char* name = zip_get_name(archive_.get(), index, ZIP_FL_ENC_RAW);
    if (name == nullptr) {
      throw Error(ErrorCode::kInput, fmt::format("entry {} of the zip archive has no name", index));
    }
    if (!entries_.emplace(name, index).second) {
      throw Error(ErrorCode::kInput,
                  fmt::format("the zip archive has two entries named \"{}\"", name));
    }
  }
}

std::vector<std::byte> ZipArchive::read(const std::string& entry, std::uint64_t max_bytes) {
  const auto refuse = [&](std::string_view why) {
    throw Error(ErrorCode::kInput, fmt::format("zip entry \"{}\" {}", entry, why));
  };
  const auto found = entries_.find(entry);
  if (found == entries_.end()) {
    refuse("is missing");
  }
  zip_stat_t stat;
  constexpr zip_uint64_t kWanted =
      ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if (zip_stat_index(archive_.get(), found->second, 0, &stat) != 0 ||
      (stat.valid & kWanted) != kWanted) {
    refuse("is damaged");
  }
  if (stat.comp_method != ZIP_CM_STORE || stat.encryption_method != ZIP_EM_NONE ||
      stat.comp_size != stat.size) {
    refuse("is compressed or encrypted; torch.save writes neither");
  }
  if (stat.size > max_bytes) {
    refuse(fmt::format("has {} bytes; at most {} are expected", stat.size, max_bytes));
  }
  if (stat.size > bytes_left_) {
    refuse("overlaps another or is larger than the archive");
  }
  bytes_left_ -= stat.size;
  const UniqueHandle<ZipEntryTraits> file(zip_fopen_index(archive_.get(), found->second, 0));
  if (!file.has_value()) {
    refuse(fmt::format("cannot be read ({})", zip_strerror(archive_.get())));
  }
  std::vector<std::byte> bytes(stat.size);
  std::size_t filled = 0;
  // The CRC is checked by the read that meets the end, so one byte more than there is must be asked
  // for.
  std::byte beyond{};
  for (;;) {
    const bool at_end = filled == bytes.size();
    const zip_int64_t got = zip_fread(
        file.get(), at_end ? &beyond : bytes.data() + filled, at_end ? 1 : bytes.size() - filled);
    if (got < 0) {
      refuse(fmt::format("is damaged ({})", zip_file_strerror(file.get())));
    }
    if (got == 0) {
      break;
    }
    if (at_end) {
      refuse("is longer than it says");
    }
    filled += static_cast<std::size_t>(got);
  }
  if (filled != bytes.size()) {
    refuse("is cut short");
  }
  return bytes;
}

}  // namespace quantmill
