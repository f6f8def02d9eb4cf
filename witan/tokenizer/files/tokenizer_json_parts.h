// Reads the parts of a tokenizer.json around its model, from JSON values that know their place in the file.
// docs/formats/tokenizer_json.md lists what is supported.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// No vocabulary comes near this.
inline constexpr uint64_t kTokenIdLimit = uint64_t{1} << 24;
inline constexpr const char* kSupportedTokenizers =
    "; Witan reads the models BPE (on bytes or on characters), Unigram, WordPiece and WordLevel, with the parts that "
    "docs/formats/tokenizer_json.md lists";

// A JSON value that knows its place in the file, for messages.
class JsonNode {
 public:
  JsonNode(const Json& value, std::string source, std::string path)
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}

  // For messages only: a place inside `other` whose value is not part of the Json.
  JsonNode(const JsonNode& other, std::string_view place)
      : value_(other.value_), source_(other.source_), path_(cat(other.path_, place)) {}

  const Json& json() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  template <class... Pieces>
  [[noreturn]] void corrupt(Pieces&&... pieces) const {
    throw CorruptionError(cat(source_, ": ", path_, " ", std::forward<Pieces>(pieces)...));
  }
  template <class... Pieces>
  [[noreturn]] void unsupported(Pieces&&... pieces) const {
    throw DataError(
        cat(source_, ": ", path_, " ", std::forward<Pieces>(pieces)..., " is not supported", kSupportedTokenizers));
  }

  // The member `key` of an object; null if it is missing.
  JsonNode operator[](const char* key) const {
    static const Json null;
    if (!value_->is_object()) corrupt("must be an object");
    const auto found = value_->find(key);
    return {found == value_->end() ? null : *found, source_, path_.empty() ? key : cat(path_, ".", key)};
  }
  JsonNode at(size_t index) const { return {(*value_)[index], source_, cat(path_, "[", index, "]")}; }

  const Json& object() const { return checked(value_->is_object(), "an object"); }
  const Json& array() const { return checked(value_->is_array(), "an array"); }
  const std::string& text() const { return checked(value_->is_string(), "a string").get_ref<const std::string&>(); }
  bool flag(bool otherwise) const {
    return is_null() ? otherwise : checked(value_->is_boolean(), "true or false").get<bool>();
  }
  std::string text_or_empty() const { return is_null() ? std::string() : text(); }
  std::string type() const { return (*this)["type"].text(); }
  int32_t id() const { return checked_id(value_->is_number_unsigned() ? value_->get<uint64_t>() : kTokenIdLimit); }

  int32_t checked_id(uint64_t id) const {
    if (id >= kTokenIdLimit) corrupt("contains an id that is not an integer from 0 to ", kTokenIdLimit - 1);
    return static_cast<int32_t>(id);
  }

 private:
  const Json& checked(bool holds, const char* what) const {
    if (!holds) corrupt("must be ", what);
    return *value_;
  }

  const Json* value_;
  std::string source_, path_;
};

// The bytes that a base64 string stands for.
std::string bytes_in(const JsonNode& node);

// Each reads one part into `spec`. They throw CorruptionError for values that are wrong in themselves, DataError for
// values that Witan does not support.
void read_normalizer(const JsonNode& node, TokenizerSpec& spec);
// Sets spec.byte_level if ByteLevel is the last step. `bytes_expected`: the decoder requires that.
void read_pretokenizer(const JsonNode& node, bool bytes_expected, TokenizerSpec& spec);
// Whether the decoder is that of a byte-level vocabulary.
bool decodes_bytes(const JsonNode& node);
void read_decoder(const JsonNode& node, TokenizerSpec& spec);
// `spec` must have its vocabulary already. Refuses post-processors that may add other tokens than Hugging Face
// tokenizers would.
void read_post_processor(const JsonNode& node, TokenizerSpec& spec);

}  // namespace witan
