#include "witan/data/text/jsonl.h"

#include <simdjson.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"

namespace witan {
namespace {

constexpr size_t kMaxDepth = 64;

const char* type_name(simdjson::dom::element_type type) {
  using Type = simdjson::dom::element_type;
  switch (type) {
    case Type::ARRAY:
      return "an array";
    case Type::OBJECT:
      return "an object";
    case Type::INT64:
    case Type::UINT64:
    case Type::DOUBLE:
      return "a number";
    case Type::STRING:
      return "a string";
    case Type::BOOL:
      return "a boolean";
    case Type::NULL_VALUE:
      return "null";
  }
  return "unknown";
}

JsonlRow bad(std::string reason) {
  return {{}, std::move(reason)};
}

std::string not_an_object(simdjson::dom::element root) {
  return cat("the row is ", type_name(root.type()), ", not an object");
}

std::string explain(simdjson::error_code error) {
  if (error == simdjson::UTF8_ERROR) return "invalid UTF-8";
  if (error == simdjson::DEPTH_ERROR) return cat("nested deeper than ", kMaxDepth);
  return cat("not valid JSON: ", simdjson::error_message(error));
}

}  // namespace

struct JsonlParser::State {
  State(std::string row_key, std::vector<std::string> other_keys)
      : key(std::move(row_key)), others(std::move(other_keys)) {}

  std::string key;
  std::vector<std::string> others;
  simdjson::dom::parser parser;
  std::string big_text;  // of a row that the fast parser cannot take

  simdjson::error_code read(std::string_view line, simdjson::dom::element& root) {
    if (parser.capacity() < line.size() || parser.max_depth() != kMaxDepth)
      if (parser.allocate(std::max<size_t>(line.size() * 2, 1 << 16), kMaxDepth) != simdjson::SUCCESS)
        throw std::bad_alloc();
    return parser.parse(line.data(), line.size()).get(root);
  }

  JsonlRow find_text(simdjson::dom::element root) {
    simdjson::dom::object object;
    if (root.get(object) != simdjson::SUCCESS) return bad(not_an_object(root));
    for (const std::string& other : others)
      if (JsonlRow row = find_string(object, other); !row.good()) return row;
    return find_string(object, key);
  }

  // How many values the name has, itself or as a path with dots; `value` is one of them.
  static int find_value(simdjson::dom::object object, std::string_view name, simdjson::dom::element& value) {
    int found = 0;
    for (const auto field : object)
      if (field.key == name && ++found == 1) value = field.value;
    if (found > 0 || name.find('.') == std::string_view::npos) return found;
    for (const auto field : object) {
      simdjson::dom::object inner;
      if (name.starts_with(field.key) && name.substr(field.key.size()).starts_with('.') &&
          field.value.get(inner) == simdjson::SUCCESS)
        found += find_value(inner, name.substr(field.key.size() + 1), value);
    }
    return found;
  }

  static JsonlRow find_string(simdjson::dom::object object, std::string_view name) {
    simdjson::dom::element value;
    const int found = find_value(object, name, value);
    if (found == 0) return bad(cat("no key \"", name, "\""));
    if (found > 1) return bad(cat("the key \"", name, "\" appears twice"));
    std::string_view text;
    if (value.get(text) != simdjson::SUCCESS)
      return bad(cat("\"", name, "\" is ", type_name(value.type()), ", not a string"));
    return {text, {}};
  }

  static int find_slowly(const Json& object, std::string_view name, const Json*& value) {
    int found = 0;
    for (const auto& field : object.items())
      if (field.key() == name) ++found, value = &field.value();
    if (found > 0) return found;
    for (const auto& [key, inner] : object.items())
      if (inner.is_object() && name.starts_with(key) && name.substr(key.size()).starts_with('.'))
        found += find_slowly(inner, name.substr(key.size() + 1), value);
    return found;
  }

  // simdjson refuses integers beyond 64 bits, which JSON allows.
  JsonlRow parse_slowly(std::string_view line) {
    try {
      const Json row = parse_json(line, "row", static_cast<int>(kMaxDepth));
      std::vector<std::string> names = others;
      names.push_back(key);
      for (const std::string& name : names) {
        const Json* value = nullptr;
        const int found = row.is_object() ? find_slowly(row, name, value) : 0;
        if (found == 0) return bad(cat("no key \"", name, "\""));
        if (found > 1) return bad(cat("the key \"", name, "\" appears twice"));
        if (!value->is_string()) return bad(cat("\"", name, "\" is not a string"));
        big_text = value->get<std::string>();
      }
      return {big_text, {}};
    } catch (const CorruptionError& error) {
      return bad(cat("not valid JSON: ", error.what()));
    }
  }

  JsonlRow parse_object_slowly(std::string_view line) {
    try {
      return parse_json(line, "row", static_cast<int>(kMaxDepth)).is_object() ? JsonlRow()
                                                                              : bad("the row is not an object");
    } catch (const CorruptionError& error) {
      return bad(cat("not valid JSON: ", error.what()));
    }
  }
};

JsonlParser::JsonlParser(std::string key, std::vector<std::string> others)
    : state_(std::make_unique<State>(std::move(key), std::move(others))) {}
JsonlParser::~JsonlParser() = default;

JsonlRow JsonlParser::parse(std::string_view line) {
  State& s = *state_;
  simdjson::dom::element root;
  const auto error = s.read(line, root);
  if (error == simdjson::NUMBER_ERROR) return s.parse_slowly(line);
  if (error != simdjson::SUCCESS) return bad(explain(error));
  return s.find_text(root);
}

JsonlRow JsonlParser::parse_object(std::string_view line) {
  simdjson::dom::element root;
  const auto error = state_->read(line, root);
  if (error == simdjson::NUMBER_ERROR) return state_->parse_object_slowly(line);
  if (error != simdjson::SUCCESS) return bad(explain(error));
  return root.is_object() ? JsonlRow() : bad(not_an_object(root));
}

}  // namespace witan
