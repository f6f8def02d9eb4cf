// llama.cpp's GGUF files: metadata and the places of tensors (docs/formats/gguf.md). Versions 2 and 3, little-endian.
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

// The types of metadata, with their numbers in the file.
enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, flag, text, array, u64, i64, f64 };

// A value, or an array of values of one type. Depending on the type, one of the three vectors holds it.
struct GgufValue {
  GgufType type = GgufType::u32;  // for an array, of its elements
  bool array = false;
  std::vector<int64_t> integers = {};  // also flags; the bits of a u64 above 2^63 - 1
  std::vector<double> numbers = {};
  std::vector<std::string> texts = {};  // not necessarily UTF-8
};

// Values by key. Asking for a value with another type throws CorruptionError, which names source and key.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string source = "") : source_(std::move(source)) {}

  const std::string& source() const { return source_; }
  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  const GgufValue* find(std::string_view key) const;

  // Nothing if the key is absent. An array of equal values, such as one for each layer, counts as one value.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // for float32, the shortest decimal that rounds to it
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  // Empty if the key is absent.
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;

  void put(const std::string& key, GgufValue value) { values_[key] = std::move(value); }
  void put_u32(const std::string& key, int64_t value) { put(key, {.type = GgufType::u32, .integers = {value}}); }
  void put_f32(const std::string& key, double value) { put(key, {.type = GgufType::f32, .numbers = {value}}); }
  void put_flag(const std::string& key, bool value) { put(key, {.type = GgufType::flag, .integers = {value}}); }
  void put_text(const std::string& key, std::string value) {
    put(key, {.type = GgufType::text, .texts = {std::move(value)}});
  }

 private:
  const GgufValue* single(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, const char* what) const;

  std::string source_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

// A type of tensors: a block of `block` elements takes `bytes` bytes.
struct GgmlType {
  uint32_t number;
  std::string_view name;  // "F32", "Q8_0"
  int64_t block, bytes;
};
// Null for a number or a name that is not a type of ggml.
const GgmlType* ggml_type(uint32_t number);
const GgmlType* ggml_type(std::string_view name);

struct GgufTensor {
  std::string name;
  std::vector<int64_t> dims;  // the slowest first, the reverse of the file's order
  const GgmlType* type = nullptr;

  int64_t elements() const;
  uint64_t bytes() const { return static_cast<uint64_t>(elements() / type->block * type->bytes); }
};

// An opened, untrusted file.
class GgufFile {
 public:
  struct Placed {
    GgufTensor info;
    std::span<const std::byte> bytes;
  };

  // Maps the file. Throws IoError; CorruptionError naming the file, the byte and the fault; DataError for versions and
  // byte orders that Witan does not read.
  explicit GgufFile(const fs::path& path);

  const fs::path& path() const { return path_; }
  const GgufMetadata& metadata() const { return metadata_; }
  const std::vector<Placed>& tensors() const { return tensors_; }  // in the file's order
  const Placed* find(std::string_view name) const;

 private:
  fs::path path_;
  MappedFile file_;
  GgufMetadata metadata_;
  std::vector<Placed> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

// Whether the bytes begin like a GGUF file of any version.
bool looks_like_gguf(std::string_view bytes);
bool is_gguf_file(const fs::path& path);

inline constexpr uint64_t kGgufAlignment = 32;  // in files that Witan writes

// Returns the padded beginning of a file of version 3. The tensors' bytes follow it in this order, each padded to
// kGgufAlignment with zeros. Keys are sorted, except that general.architecture comes first.
std::string gguf_header(const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors);
uint64_t gguf_padding(uint64_t bytes);

}  // namespace witan
