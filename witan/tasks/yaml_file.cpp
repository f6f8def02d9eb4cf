#include "witan/tasks/yaml_file.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <map>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using jinja::Entries;
using jinja::Value;

constexpr size_t kMostBytes = 4 << 20;
constexpr int kMostIncludes = 8;  // nested includes
constexpr int kMostNested = 100;  // nested lists and mappings
constexpr int64_t kMostValues = 1 << 20;

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  Number number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

Value scalar_of(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  const std::string& tag = node.Tag();
  if (tag.size() > 1 && tag.starts_with('!')) return Value::dict({{Value::text(tag), Value::text(text)}});
  require<DataError>(find_invalid_utf8(text) == std::string::npos, "text that is not UTF-8");
  if (tag != "?") return Value::text(text);  // quoted, or a block scalar
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return Value::none();
  if (text == "true" || text == "True" || text == "TRUE") return Value::boolean(true);
  if (text == "false" || text == "False" || text == "FALSE") return Value::boolean(false);
  if (const auto integer = number_in<int64_t>(text)) return Value::integer(*integer);
  const bool numeric = text.find_first_not_of("0123456789+-.eE") == std::string::npos;
  if (const auto real = number_in<double>(text); real && numeric) return Value(Value::Variant(*real));
  return Value::text(text);
}

// An alias repeats the whole value of its anchor, so a few bytes can expand beyond memory, or an alias can contain
// itself.
class NodeReader {
 public:
  Value value_of(const YAML::Node& node, int depth = 0) {
    require<DataError>(depth <= kMostNested, "lists and mappings are nested more than ", kMostNested,
                       " deep: does an alias (*NAME) occur within its own anchor (&NAME)?");
    require<DataError>(++values_ <= kMostValues, "more than ", kMostValues,
                       " values, those of aliases (*NAME) included, are not supported");
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        return Value::none();
      case YAML::NodeType::Scalar:
        return scalar_of(node);
      case YAML::NodeType::Sequence: {
        jinja::Items items;
        for (const YAML::Node& item : node) items.push_back(value_of(item, depth + 1));
        return Value::list(std::move(items));
      }
      case YAML::NodeType::Map:
        return mapping_of(node, depth);
    }
    return Value::none();
  }

 private:
  Value mapping_of(const YAML::Node& node, int depth) {
    Entries entries;
    std::map<std::string, size_t> places;
    for (const auto& entry : node) {
      require<DataError>(entry.first.IsScalar(), "a key that is a list or a mapping is not supported");
      const auto [place, is_new] = places.emplace(entry.first.Scalar(), entries.size());
      if (is_new) entries.emplace_back(place->first, Value());
      entries[place->second].second = value_of(entry.second, depth + 1);  // the last value of a repeated key counts
    }
    return Value::dict(std::move(entries));
  }

  int64_t values_ = 0;
};

void put_all(Entries& all, const Entries& more) {
  for (const auto& [key, value] : more) {
    std::erase_if(all, [&key = key](const auto& entry) { return equal(entry.first, key); });
    all.emplace_back(key, value);
  }
}

Entries with_includes(const fs::path& file, int depth) {
  require<DataError>(depth <= kMostIncludes, file.string(), ": files include one another more than ", kMostIncludes,
                     " deep: remove the cycle of includes");
  Entries own = *parse_yaml(read_file(file), file.string()).entries(), all;
  const Value* include = find(own, "include");
  if (!include) return own;
  for (const Value& one : include->sequence() ? *include->sequence()->items : jinja::Items{*include}) {
    require<DataError>(one.string() != nullptr, file.string(), ": include takes file names, not ", type_name(one));
    put_all(all, with_includes(file.parent_path() / *one.string(), depth + 1));
  }
  put_all(all, own);
  std::erase_if(all, [](const auto& entry) { return *entry.first.string() == "include"; });
  return all;
}

}  // namespace

jinja::Value parse_yaml(const std::string& text, const std::string& name) {
  require<DataError>(text.size() <= kMostBytes, name, ": a task of more than ", format_bytes(kMostBytes),
                     " is not supported");
  Value value;
  try {
    value = NodeReader().value_of(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    throw DataError(cat(name, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  } catch (const DataError& error) {
    throw DataError(cat(name, ": ", error.what()));
  }
  require<DataError>(value.entries() != nullptr, name, ": a task is a mapping of keys, not ", type_name(value));
  return value;
}

jinja::Value read_yaml_file(const fs::path& file) {
  return Value::dict(with_includes(file, 0));
}

}  // namespace witan
