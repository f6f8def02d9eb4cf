#include "witan/base/json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// Builds the value while watching depth and keys, which the library's own reader does not.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view source, int max_depth) : source_(source), max_depth_(max_depth) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (open_.back()->contains(key))  // words only where there is an error: keys are read by the million
      throw CorruptionError(cat(source_, ": the key \"", clipped(key), "\" appears twice in one object"));
    key_ = std::move(key);
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& e) override {
    throw CorruptionError(cat(source_, ": byte ", byte, ": not valid JSON (", clipped(reason(e.what()), 200), ")"));
  }

  Json root;

 private:
  // The library's reason without its own prefix, "[json.exception.parse_error.101] parse error at line 1, column 2: ".
  static std::string_view reason(std::string_view what) {
    const size_t tag = what.find("] ");
    if (tag != std::string_view::npos) what.remove_prefix(tag + 2);
    const size_t position = what.find(": ");
    if (what.starts_with("parse error at ") && position != std::string_view::npos) what.remove_prefix(position + 2);
    return what;
  }

  Json* put(Json&& value, int) {
    if (open_.empty()) return &(root = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[std::exchange(key_, {})] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  template <class Value>
  bool put(Value&& value) {
    return put(Json(std::forward<Value>(value)), 0) != nullptr;
  }
  bool open(Json&& value) {
    require<CorruptionError>(static_cast<int>(open_.size()) < max_depth_, source_, ": nested deeper than ", max_depth_);
    open_.push_back(put(std::move(value), 0));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string source_;
  int max_depth_;
  std::vector<Json*> open_;
  std::string key_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view source, int max_depth) {
  Builder builder(source, max_depth);
  Json::sax_parse(text, &builder);
  return std::move(builder.root);
}

int64_t json_integer(const Json& value, int64_t least, int64_t most) {
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX} : value.is_number_integer();
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (fits && number >= least && number <= most) return number;
  throw Json::out_of_range::create(
      400,
      cat(clipped(value.dump(-1, ' ', false, Json::error_handler_t::replace)), " is there, not ", least, " to ", most),
      &value);
}

}  // namespace witan
