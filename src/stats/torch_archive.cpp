#include "stats/torch_archive.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "stats/pickle.h"
#include "stats/torch_values.h"
#include "stats/zip_archive.h"

namespace quantmill {

namespace {

// A pickle of statistics has some 400 bytes per input; this bounds what parsing a hostile one can
// take.
constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{64} << 20;

// Tensors may share storages, so the file's size alone does not bound the work; small files get
// this much for free.
constexpr std::uint64_t kFreeWork = std::uint64_t{1} << 20;

// A tensor whose values are wanted, and where they go.
struct Request {
  std::string_view field;
  const std::string* name = nullptr;
  const TorchTensor* tensor = nullptr;
  std::vector<double>* values = nullptr;  // nullptr: the count of `input`
  InputStatistics* input = nullptr;
};

[[noreturn]] void refuse(const std::string& name, std::string_view field, std::string_view why) {
  throw Error(ErrorCode::kInput, fmt::format("input \"{}\": {} {}", name, field, why));
}

// Turns a pickle's value into statistics: first all dicts are walked, then each storage is read
// once.
class Extractor {
 public:
  Extractor(ZipArchive& archive, std::string folder, std::uint64_t file_bytes)
      : archive_(archive),
        folder_(std::move(folder)),
        pickle_bytes_(archive_.read(folder_ + "/data.pkl", kMaxPickleBytes)),
        pickle_(parse_pickle(pickle_bytes_)),
        work_left_(file_bytes + kFreeWork) {}

  Statistics run(const std::string& source);

 private:
  void add_input(std::string name, const PickleDict& fields, const std::string& source);
  void add_vector(const std::string& name,
                  std::string_view field,
                  PickleId id,
                  InputStatistics& input,
                  std::vector<double>& values);
  void add_count(const std::string& name, PickleId id, InputStatistics& input);
  void fill();
  std::vector<std::byte> read_storage(const TorchStorage& storage);
  void spend(std::uint64_t work);

  [[nodiscard]] const TorchStorage& storage_of(const Request& request) const {
    return *pickle_.get_if<TorchStorage>(request.tensor->storage);
  }

  [[nodiscard]] std::string_view text(PickleId id) const {
    const auto* found = pickle_.get_if<std::string_view>(id);
    return found == nullptr ? std::string_view() : *found;
  }

  ZipArchive& archive_;
  std::string folder_;
  std::vector<std::byte> pickle_bytes_;  // texts of pickle_ point into it
  Pickle pickle_;
  std::uint64_t work_left_;
  Statistics statistics_;
  std::vector<Request> requests_;
};

Statistics Extractor::run(const std::string& source) {
  const auto* inputs = pickle_.get_if<PickleDict>(pickle_.root);
  if (inputs == nullptr) {
    throw Error(ErrorCode::kInput, "the pickle is not a dict of inputs");
  }
  for (const auto& [key, value] : inputs->items) {
    spend(1);
    const auto* name = pickle_.get_if<std::string_view>(key);
    const auto* fields = pickle_.get_if<PickleDict>(value);
    if (name == nullptr) {
      throw Error(ErrorCode::kInput, "a key of the pickle's dict is not an input's name");
    }
    if (fields == nullptr) {
      refuse(std::string(*name), "value", "is not a dict of tensors");
    }
    add_input(std::string(*name), *fields, source);
  }
  if (statistics_.empty()) {
    throw Error(ErrorCode::kInput, "the pickle holds no inputs");
  }
  fill();
  return std::move(statistics_);
}

void Extractor::add_input(std::string name, const PickleDict& fields, const std::string& source) {
  constexpr std::string_view kModelPrefix = "model.";
  if (name.starts_with(kModelPrefix)) {
    name.erase(0, kModelPrefix.size());
  }
  const auto [entry, is_new] = statistics_.try_emplace(std::move(name));
  const std::string& key = entry->first;
  if (!is_new) {
    refuse(key, "name", "is there twice (with or without \"model.\" before it)");
  }
  std::map<std::string_view, PickleId> wanted;
  for (const auto& [field, value] : fields.items) {
    spend(1);
    const std::string_view field_name = text(field);
    if (field_name == "absmean" || field_name == "sqmean" || field_name == "absmax" ||
        field_name == "count") {
      wanted[field_name] = value;
    }
  }
  InputStatistics& input = entry->second;
  input.source = source;
  for (const auto& [field, value] : wanted) {
    if (field == "count") {
      add_count(key, value, input);
    } else {
      add_vector(key,
                 field,
                 value,
                 input,
                 field == "absmean"  ? input.absmean
                 : field == "sqmean" ? input.sqmean
                                     : input.absmax);
    }
  }
  if (!wanted.contains("absmean")) {
    refuse(key, "absmean", "is missing");
  }
}

void Extractor::add_vector(const std::string& name,
                           std::string_view field,
                           PickleId id,
                           InputStatistics& input,
                           std::vector<double>& values) {
  const auto* tensor = pickle_.get_if<TorchTensor>(id);
  if (tensor == nullptr) {
    refuse(name, field, "is not a tensor");
  }
  const std::vector<std::uint64_t> shape = pickle_.sizes(tensor->sizes);
  if (shape.size() != 1) {
    refuse(name,
           field,
           fmt::format("has shape [{}]; one dimension is expected", fmt::join(shape, ", ")));
  }
  const TorchType type = pickle_.get_if<TorchStorage>(tensor->storage)->type;
  if (!is_float(type)) {
    refuse(name,
           field,
           fmt::format("is of type {}; float16, bfloat16, float32 or float64 is expected",
                       torch_type_name(type)));
  }
  spend(shape[0]);
  requests_.push_back({field, &name, tensor, &values, &input});
}

void Extractor::add_count(const std::string& name, PickleId id, InputStatistics& input) {
  input.has_count = true;
  if (const auto* count = pickle_.get_if<std::int64_t>(id)) {
    if (*count < 0) {
      refuse(name, "count", fmt::format("is {}", *count));
    }
    input.count = static_cast<std::uint64_t>(*count);
    return;
  }
  const auto* tensor = pickle_.get_if<TorchTensor>(id);
  if (tensor == nullptr || !pickle_.sizes(tensor->sizes).empty() ||
      !is_integer(pickle_.get_if<TorchStorage>(tensor->storage)->type)) {
    refuse(name, "count", "is neither an integer nor an integer tensor without dimensions");
  }
  requests_.push_back({"count", &name, tensor, nullptr, &input});
}

void Extractor::fill() {
  std::stable_sort(requests_.begin(), requests_.end(), [&](const Request& a, const Request& b) {
    return text(storage_of(a).key) < text(storage_of(b).key);
  });
  std::vector<std::byte> bytes;
  const TorchStorage* loaded = nullptr;
  for (const Request& request : requests_) {
    const TorchStorage& storage = storage_of(request);
    if (loaded == nullptr || text(loaded->key) != text(storage.key)) {
      bytes = with_context(fmt::format("input \"{}\": {}", *request.name, request.field),
                           [&] { return read_storage(storage); });
      loaded = &storage;
    } else if (loaded->num_elements != storage.num_elements || loaded->type != storage.type) {
      refuse(*request.name,
             request.field,
             "shares a storage with a tensor that describes it otherwise");
    }
    const std::vector<std::uint64_t> sizes = pickle_.sizes(request.tensor->sizes);
    const TorchView view{storage.type,
                         request.tensor->offset,
                         sizes.empty() ? 1 : sizes[0],
                         sizes.empty() ? 0 : pickle_.sizes(request.tensor->strides)[0]};
    if (!fits(view, storage.num_elements)) {
      refuse(*request.name,
             request.field,
             fmt::format("lies outside its storage of {} elements", storage.num_elements));
    }
    if (request.values != nullptr) {
      *request.values = load_floats(view, bytes);
      continue;
    }
    const std::int64_t count = load_integer(view, bytes);
    if (count < 0) {
      refuse(*request.name, "count", fmt::format("is {}", count));
    }
    request.input->count = static_cast<std::uint64_t>(count);
  }
}

std::vector<std::byte> Extractor::read_storage(const TorchStorage& storage) {
  const std::string entry = fmt::format("{}/data/{}", folder_, text(storage.key));
  const auto wanted = checked_multiply(storage.num_elements, torch_type_bytes(storage.type));
  if (!archive_.has(entry)) {
    throw Error(ErrorCode::kInput, fmt::format("its storage \"{}\" is missing", text(storage.key)));
  }
  if (!wanted) {
    throw Error(ErrorCode::kInput, "its storage is impossibly large");
  }
  std::vector<std::byte> bytes = archive_.read(entry, *wanted);
  if (bytes.size() != *wanted) {
    throw Error(ErrorCode::kInput,
                fmt::format("its storage \"{}\" has {} bytes; {} are expected",
                            text(storage.key),
                            bytes.size(),
                            *wanted));
  }
  return bytes;
}

void Extractor::spend(std::uint64_t work) {
  if (work > work_left_) {
    throw Error(ErrorCode::kInput,
                "the tensors hold far more values than the file; its dicts or storages are shared "
                "too often");
  }
  work_left_ -= work;
}

// The folder that torch put everything into: that of data.pkl.
std::string find_folder(const ZipArchive& archive) {
  constexpr std::string_view kPickle = "/data.pkl";
  std::optional<std::string> folder;
  for (const auto& [name, index] : archive.entries()) {
    if (name.ends_with(kPickle) && name.find('/') == name.size() - kPickle.size()) {
      if (folder) {
        throw Error(ErrorCode::kInput, "the archive has more than one FOLDER/data.pkl");
      }
      folder = name.substr(0, name.size() - kPickle.size());
    }
  }
  if (!folder) {
    throw Error(ErrorCode::kInput,
                "the archive has no FOLDER/data.pkl; it was not written by torch.save");
  }
  return *folder;
}

void check_byte_order(ZipArchive& archive, const std::string& folder) {
  const std::string entry = folder + "/byteorder";
  if (!archive.has(entry)) {
    return;  // torch before 2.1
  }
  constexpr std::uint64_t kMaxBytes = 16;
  const std::vector<std::byte> bytes = archive.read(entry, kMaxBytes);
  const std::string_view order(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (order != "little") {
    throw Error(ErrorCode::kInput,
                "its byte order is not little-endian; save it again on a little-endian machine");
  }
}

// Says what a file that is no zip archive is instead.
void check_begin(std::span<const std::byte> head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.empty()) {
    throw Error(ErrorCode::kInput, "the file is empty");
  }
  if (text.starts_with('\x80')) {
    throw Error(ErrorCode::kInput,
                "the file is a bare pickle, such as torch's old format, not a zip archive; if you "
                "trust it, save it "
                "again with torch.save(torch.load(FILE), FILE)");
  }
  if (!text.starts_with("PK\x03\x04")) {
    throw Error(ErrorCode::kInput, "the file is not a zip archive as torch.save writes");
  }
}

Statistics read_archive(ZipArchive& archive, std::uint64_t file_bytes, const std::string& source) {
  const std::string folder = find_folder(archive);
  check_byte_order(archive, folder);
  Statistics statistics = Extractor(archive, folder, file_bytes).run(source);
  check_statistics(statistics);
  return statistics;
}

}  // namespace

Statistics read_torch_statistics(const std::filesystem::path& file) {
  return with_context(fmt::format("\"{}\"", file.string()), [&] {
    const File opened = File::open_to_read(file);
    const std::uint64_t file_bytes = opened.size_bytes();
    std::vector<std::byte> head(std::min<std::size_t>(4, file_bytes));
    opened.read_at(0, head);
    check_begin(head);
    ZipArchive archive(file);
    return read_archive(archive, file_bytes, file.filename().string());
  });
}

Statistics parse_torch_statistics(std::span<const std::byte> bytes, const std::string& source) {
  check_begin(bytes);
  ZipArchive archive(bytes);
  return read_archive(archive, bytes.size(), source);
}

std::vector<std::filesystem::path> find_tensor_parallel_files(const std::filesystem::path& prefix) {
  const std::string begin = prefix.filename().string() + ".tp";
  constexpr std::string_view kEnd = ".pt";
  std::filesystem::path folder = prefix.parent_path();
  if (folder.empty()) {
    folder = ".";
  }
  std::map<std::uint64_t, std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() <= begin.size() + kEnd.size() || !name.starts_with(begin) ||
        !name.ends_with(kEnd)) {
      continue;
    }
    const char* first = name.data() + begin.size();
    const char* last = name.data() + name.size() - kEnd.size();
    std::uint64_t rank = 0;
    const auto [stop, status] = std::from_chars(first, last, rank);
    if (status != std::errc() || stop != last) {
      continue;
    }
    if (!found.emplace(rank, prefix.parent_path() / name).second) {
      throw Error(ErrorCode::kInput,
                  fmt::format("\"{}\": two files are for rank {}: {} and {}",
                              prefix.string(),
                              rank,
                              found[rank].filename().string(),
                              name));
    }
  }
  std::vector<std::filesystem::path> files;
  for (const auto& [rank, path] : found) {
    if (rank != files.size()) {
      throw Error(
          ErrorCode::kInput,
          fmt::format("\"{}.tp{}.pt\" is missing, though {} is there; all ranks' files are needed",
                      prefix.string(),
                      files.size(),
                      path.filename().string()));
    }
    files.push_back(path);
  }
  return files;
}

}  // namespace quantmill
