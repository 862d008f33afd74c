#include "checkpoint/safetensors.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/json_events.h"

namespace quantmill {

namespace {

// Frameworks allow 64 at most; the cap keeps a hostile header from asking for memory.
constexpr std::size_t kMaxDimensions = 64;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

// Builds the header from JSON events: { "__metadata__": {string: string}, NAME: {dtype, shape,
// data_offsets}, … }. Other fields of a tensor are passed over, as the safetensors library does.
class HeaderBuilder {
 public:
  void on_event(const JsonEvent& event) {
    switch (place_) {
      case Place::kStart:
        expect(
            event, JsonEvent::Kind::kStartObject, [] { return "the header"; }, "an object");
        place_ = Place::kTop;
        break;
      case Place::kTop:
        on_top(event);
        break;
      case Place::kMetadataStart:
        expect(
            event,
            JsonEvent::Kind::kStartObject,
            [] { return "__metadata__"; },
            "an object of strings");
        place_ = Place::kMetadata;
        break;
      case Place::kMetadata:
        on_metadata(event);
        break;
      case Place::kTensorStart:
        expect(
            event, JsonEvent::Kind::kStartObject, [&] { return what(); }, "an object");
        place_ = Place::kTensor;
        break;
      case Place::kTensor:
        on_tensor(event);
        break;
      case Place::kDtype:
        on_dtype(event);
        break;
      case Place::kArrayStart:
        expect(
            event, JsonEvent::Kind::kStartArray, [&] { return what(); }, "an array");
        place_ = Place::kArray;
        break;
      case Place::kArray:
        on_array(event);
        break;
      case Place::kSkipped:
        on_skipped(event);
        break;
    }
  }

  SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class Place {
    kStart,
    kTop,
    kMetadataStart,
    kMetadata,
    kTensorStart,
    kTensor,
    kDtype,
    kArrayStart,
    kArray,
    kSkipped,
  };

  [[nodiscard]] std::string what() const {
    const std::string tensor = "tensor " + quote_name(tensor_.name);
    return field_.empty() ? tensor : fmt::format("{} of {}", field_, tensor);
  }

  // `what` makes the text of the message: it is called for wrong events only, since most are right.
  template <typename What>
  static void expect(const JsonEvent& event,
                     JsonEvent::Kind wanted,
                     const What& what,
                     const char* wanted_text) {
    if (event.kind != wanted) {
      fail(fmt::format(
          "{} is not {}; the file is damaged or not a safetensors file", what(), wanted_text));
    }
  }

  void on_top(const JsonEvent& event) {
    if (event.kind == JsonEvent::Kind::kEndObject) {
      return;  // the parser lets nothing follow
    }
    if (event.text == "__metadata__") {
      if (std::exchange(has_metadata_, true)) {
        fail("__metadata__ is there twice; the file is damaged");
      }
      place_ = Place::kMetadataStart;
      return;
    }
    tensor_ = TensorEntry{};
    tensor_.name = event.text;
    offsets_.clear();
    field_.clear();
    has_dtype_ = has_shape_ = has_offsets_ = false;
    place_ = Place::kTensorStart;
  }

  void on_metadata(const JsonEvent& event) {
    if (event.kind == JsonEvent::Kind::kEndObject) {
      place_ = Place::kTop;
    } else if (event.kind == JsonEvent::Kind::kKey) {
      metadata_key_ = event.text;
    } else {
      expect(
          event,
          JsonEvent::Kind::kString,
          [&] { return fmt::format("{} of __metadata__", quote_name(metadata_key_)); },
          "a string");
      if (!header_.metadata.emplace(metadata_key_, event.text).second) {
        fail(fmt::format("{} is twice in __metadata__; the file is damaged",
                         quote_name(metadata_key_)));
      }
    }
  }

  void on_tensor(const JsonEvent& event) {
    if (event.kind == JsonEvent::Kind::kEndObject) {
      finish_tensor();
      place_ = Place::kTop;
    } else if (event.text == "dtype") {
      begin_field("dtype", has_dtype_);
      place_ = Place::kDtype;
    } else if (event.text == "shape") {
      begin_field("shape", has_shape_);
      array_ = &tensor_.shape;
      max_array_ = kMaxDimensions;
      place_ = Place::kArrayStart;
    } else if (event.text == "data_offsets") {
      begin_field("data_offsets", has_offsets_);
      array_ = &offsets_;
      max_array_ = 2;
      place_ = Place::kArrayStart;
    } else {
      skipped_depth_ = 0;
      place_ = Place::kSkipped;
    }
  }

  void begin_field(const char* name, bool& seen) {
    field_ = name;
    if (std::exchange(seen, true)) {
      fail(fmt::format("{} is given twice; the file is damaged", what()));
    }
  }

  void on_dtype(const JsonEvent& event) {
    expect(
        event, JsonEvent::Kind::kString, [&] { return what(); }, "a string");
    const std::optional<DType> dtype = dtype_from_name(event.text);
    if (!dtype) {
      field_.clear();
      fail(fmt::format(
          "{} has dtype {}, which the safetensors format of this program's version does "
          "not have",
          what(),
          quote_name(event.text)));
    }
    tensor_.dtype = *dtype;
    place_ = Place::kTensor;
  }

  void on_array(const JsonEvent& event) {
    if (event.kind == JsonEvent::Kind::kEndArray) {
      place_ = Place::kTensor;
      return;
    }
    expect(
        event,
        JsonEvent::Kind::kUnsigned,
        [&] { return what(); },
        "an array of whole numbers from 0 to 18446744073709551615");
    if (array_->size() == max_array_) {
      fail(fmt::format("{} has more than {} numbers; the file is damaged", what(), max_array_));
    }
    array_->push_back(event.number);
  }

  void on_skipped(const JsonEvent& event) {
    switch (event.kind) {
      case JsonEvent::Kind::kStartObject:
      case JsonEvent::Kind::kStartArray:
        ++skipped_depth_;
        break;
      case JsonEvent::Kind::kEndObject:
      case JsonEvent::Kind::kEndArray:
        --skipped_depth_;
        break;
      case JsonEvent::Kind::kKey:
      case JsonEvent::Kind::kString:
      case JsonEvent::Kind::kUnsigned:
      case JsonEvent::Kind::kOther:
        break;
    }
    if (skipped_depth_ == 0) {
      place_ = Place::kTensor;
    }
  }

  void finish_tensor() {
    field_.clear();
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      fail(fmt::format("{} has no {}; the file is damaged",
                       what(),
                       !has_dtype_   ? "dtype"
                       : !has_shape_ ? "shape"
                                     : "data_offsets"));
    }
    if (offsets_.size() != 2) {
      fail(fmt::format("data_offsets of {} has {} numbers, not 2; the file is damaged",
                       what(),
                       offsets_.size()));
    }
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header_.tensors.push_back(std::move(tensor_));
  }

  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  TensorEntry tensor_;
  std::string field_;
  std::string metadata_key_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint64_t>* array_ = nullptr;
  std::size_t max_array_ = 0;
  int skipped_depth_ = 0;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

void check_names(const std::vector<TensorEntry>& tensors) {
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      fail(fmt::format("tensor {} is twice in the header; the file is damaged",
                       quote_name(tensor.name)));
    }
  }
}

void check_size(const TensorEntry& tensor) {
  if (tensor.end < tensor.begin) {
    fail(fmt::format(
        "tensor {} ends at byte {} of the data, before its beginning at {}; the file is "
        "damaged",
        quote_name(tensor.name),
        tensor.end,
        tensor.begin));
  }
  const std::uint64_t wanted = with_context("tensor " + quote_name(tensor.name), [&] {
    return tensor_size_bytes(tensor.dtype, tensor.shape);
  });
  if (tensor.size_bytes() != wanted) {
    fail(
        fmt::format("tensor {} has {} bytes, but its dtype {} and shape [{}] make {}; the file is "
                    "damaged",
                    quote_name(tensor.name),
                    tensor.size_bytes(),
                    dtype_name(tensor.dtype),
                    fmt::join(tensor.shape, ", "),
                    wanted));
  }
}

// Tensors in order of `begin` must cover the data section exactly.
void check_cover(const std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  const TensorEntry* previous = nullptr;
  for (const TensorEntry& tensor : tensors) {
    check_size(tensor);
    if (tensor.begin < covered) {
      fail(fmt::format(
          "tensor {} begins at byte {} of the data, inside tensor {} that ends at {}: they "
          "overlap; the file is damaged",
          quote_name(tensor.name),
          tensor.begin,
          quote_name(previous->name),
          covered));
    }
    if (tensor.begin > covered) {
      fail(fmt::format(
          "bytes {} to {} of the data, before tensor {}, belong to no tensor; the file is "
          "damaged",
          covered,
          tensor.begin,
          quote_name(tensor.name)));
    }
    if (tensor.end > data_bytes) {
      fail(fmt::format(
          "tensor {} ends at byte {} of the data, but the file has only {}; it is cut short, "
          "so copy or download it again",
          quote_name(tensor.name),
          tensor.end,
          data_bytes));
    }
    covered = tensor.end;
    previous = &tensor;
  }
  if (covered != data_bytes) {
    fail(fmt::format("{} bytes follow the last tensor; the file is damaged or holds something else",
                     data_bytes - covered));
  }
}

}  // namespace

std::uint64_t TensorEntry::num_elements() const {
  std::uint64_t count = 1;
  for (const std::uint64_t dimension : shape) {
    const std::optional<std::uint64_t> product = checked_multiply(count, dimension);
    check_invariant(product.has_value(), "the shape of a tensor overflows");
    count = *product;
  }
  return count;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t file_bytes) {
  if (json.size() > kMaxHeaderBytes) {
    fail(
        fmt::format("the header has {} bytes; the format allows {}", json.size(), kMaxHeaderBytes));
  }
  const std::uint64_t data_begin = 8 + json.size();
  if (file_bytes < data_begin) {
    fail(fmt::format(
        "the header ends at byte {}, but the file has only {}; it is cut short, so copy or "
        "download it again",
        data_begin,
        file_bytes));
  }
  if (!json.starts_with('{')) {
    fail("the header does not begin with '{'; this is not a safetensors file");
  }
  SafetensorsHeader header = with_context("header", [&] {
    HeaderBuilder builder;
    read_json_events(json, [&](const JsonEvent& event) { builder.on_event(event); });
    return builder.take();
  });
  header.data_begin = data_begin;
  check_names(header.tensors);
  std::stable_sort(
      header.tensors.begin(), header.tensors.end(), [](const auto& left, const auto& right) {
        return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
      });
  check_cover(header.tensors, file_bytes - data_begin);
  return header;
}

std::uint64_t tensor_size_bytes(DType dtype, std::span<const std::uint64_t> shape) {
  std::optional<std::uint64_t> bits = dtype_bits(dtype);
  for (const std::uint64_t dimension : shape) {
    bits = checked_multiply(*bits, dimension);
    if (!bits) {
      fail(fmt::format(
          "shape [{}] of {} has more bits than 64-bit numbers count; the file is damaged",
          fmt::join(shape, ", "),
          dtype_name(dtype)));
    }
  }
  if (*bits % 8 != 0) {
    fail(fmt::format("shape [{}] of {} does not fill whole bytes, which the format requires",
                     fmt::join(shape, ", "),
                     dtype_name(dtype)));
  }
  return *bits / 8;
}

}  // namespace quantmill
