#include "witan/cli/config/differences.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "witan/base/text.h"
#include "witan/cli/args/config_args.h"

namespace witan::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";  // JSON has no such numbers
}

// The text's value if it is a number, true, false or an array; otherwise nothing.
std::optional<OrderedJson> parsed(const std::string& text) {
  OrderedJson json = OrderedJson::parse(text, nullptr, false);
  if (json.is_discarded() || !(json.is_number() || json.is_boolean() || json.is_array())) return std::nullopt;
  return json;
}

OrderedJson paths_in(const std::string& text) {
  OrderedJson list = OrderedJson::array();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    list.push_back(replace_invalid_utf8(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return list;
}

OrderedJson json_of(const Field& field, const std::string& text) {
  if (is_list(field)) return paths_in(text);
  const bool numbers = std::isfinite(field.least);  // a text with a bound is a number, or several separated by commas
  if (numbers || text.starts_with('[')) {
    if (auto json = parsed(text)) return *json;
    if (auto json = parsed("[" + text + "]"); json && numbers) return *json;
  }
  return replace_invalid_utf8(text);
}

OrderedJson json_of(const Field& field, const std::vector<TableKeys>& tables) {
  OrderedJson all = OrderedJson::array();
  for (const TableKeys& keys : tables) {
    OrderedJson one = OrderedJson::object();
    for (const auto& [key, text] : keys) {
      const auto column = std::ranges::find(field.columns, key, &Field::name);
      const bool is_text = std::holds_alternative<std::string*>(column->value);
      one[key] = is_text ? OrderedJson(replace_invalid_utf8(text)) : parsed(text).value_or(text);
    }
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

OrderedJson json_value(const Field& field) {
  if (auto* const* flag = std::get_if<bool*>(&field.value)) return **flag;
  if (auto* const* integer = std::get_if<int64_t*>(&field.value)) return **integer;
  if (auto* const* number = std::get_if<double*>(&field.value)) return json_of(**number);
  if (auto* const* text = std::get_if<std::string*>(&field.value)) return json_of(field, **text);
  return json_of(field, *std::get<std::vector<TableKeys>*>(field.value));
}

std::vector<KeyDifference> differing_keys(std::vector<RunConfig> configs) {
  std::vector<Fields> fields;
  for (RunConfig& config : configs) fields.push_back(config.fields());
  std::vector<KeyDifference> found;
  for (size_t i = 0; !fields.empty() && i < fields[0].size(); ++i) {
    const Field& field = fields[0][i];
    if (field.name == "run" || field.name == "runs_folder") continue;
    KeyDifference difference{field.section, field.name, {}, {}};
    for (const Fields& one : fields) difference.values.push_back(one[i].text());
    for (const Fields& one : fields) difference.json.push_back(json_value(one[i]));
    if (std::ranges::adjacent_find(difference.values, std::not_equal_to<>()) != difference.values.end())
      found.push_back(std::move(difference));
  }
  return found;
}

}  // namespace witan::cli
