#include "witan/base/config/fields.h"

#include <fmt/format.h>

// The parser's macro for its asserts, some of which malformed files violate (e.g. "[(").
namespace witan {
struct ParserAssertion {};
[[noreturn]] static void refuse_assertion() {
  throw ParserAssertion();
}
}  // namespace witan
#define TOML_ASSERT(condition) ((condition) ? static_cast<void>(0) : witan::refuse_assertion())
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "witan/base/config/other_flags.h"
#include "witan/base/config/toml_text.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// " (did you mean X?)"
std::string meant(std::string_view input, const std::vector<std::string>& choices) {
  constexpr std::pair<std::string_view, std::string_view> kOthers[] = {{"gpu", "cuda"},
                                                                       {"bf16", "bfloat16"},
                                                                       {"fp32", "float32"},
                                                                       {"fp64", "float64"},
                                                                       {"none", "no_shard"},
                                                                       {"ddp", "no_shard"},
                                                                       {"zero", "optim"},
                                                                       {"zero1", "optim"},
                                                                       {"zero2", "optim_grads"},
                                                                       {"zero3", "optim_grads_params"},
                                                                       {"fsdp", "optim_grads_params"},
                                                                       {"hsdp", "optim_grads_params"},
                                                                       {"sft", "cross_entropy"},
                                                                       {"ppo", "policy"},
                                                                       {"grpo", "policy"},
                                                                       {"dr_grpo", "policy"},
                                                                       {"dapo", "policy"},
                                                                       {"gspo", "policy"},
                                                                       {"dpo", "preference"}};
  return suggestion(input, choices, kOthers);
}

std::string joined(const std::vector<std::string>& words, const char* separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

// TOML basic string.
std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + '"';
}

template <class Number>
bool parse_number(std::string_view text, Number& out) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// Integers may be written as 1e9 or 1_000_000 too, as long as they are whole.
bool parse_integer(std::string_view text, int64_t& out) {
  std::string digits(text);
  std::erase(digits, '_');
  if (parse_number(std::string_view(digits), out)) return true;
  double value = 0;
  if (!parse_number(std::string_view(digits), value) || value != std::floor(value) || std::abs(value) > 0x1p53)
    return false;
  out = static_cast<int64_t>(value);
  return true;
}

const Field& find_field(const Fields& fields, std::string_view key, std::string_view origin) {
  for (const auto& field : fields)
    if (field.name == key) return field;
  std::vector<std::string> names;
  for (const auto& field : fields) names.push_back(field.name);
  const std::string other = other_key(key);
  const bool meant_other = std::ranges::find(names, other) != names.end();
  throw ConfigError(cat(origin, ": there is no key ", clipped(key),
                        meant_other ? cat(" (did you mean ", other, "?)") : suggestion(key, names)));
}

// [1, 0] as the text "[1,0]", or nothing for an array of anything but whole numbers.
std::optional<std::string> text_of(const toml::array& array) {
  std::string text;
  for (const auto& element : array) {
    if (!element.is_integer()) return std::nullopt;
    text += (text.empty() ? "" : ",") + std::to_string(element.as_integer()->get());
  }
  return "[" + text + "]";
}

// A text with a bound is a list of numbers, with commas between them. One number alone need not be quoted in a file.
bool lists_numbers(const Field& field) {
  return std::holds_alternative<std::string*>(field.value) && std::isfinite(field.least);
}

// "a number", as errors have it.
std::string kind_of(const Field& field) {
  if (std::holds_alternative<bool*>(field.value)) return "true or false";
  if (std::holds_alternative<int64_t*>(field.value)) return "a whole number";
  if (std::holds_alternative<double*>(field.value)) return "a number";
  if (std::holds_alternative<std::vector<TableKeys>*>(field.value)) return "an array of tables";
  return field.choices.empty() ? "text in quotes" : "one of " + field.type_name();
}

// A value as errors have it.
std::string shown(const toml::node& node) {
  if (const auto* text = node.as_string()) return clipped(cat("\"", text->get(), "\""));
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return node.is_table() ? "a table" : "a date or time";
}

// The text that a field is set from. The node must have the field's type.
std::string text_of(const toml::node& node, const Field& field, const std::string& origin) {
  const bool is_text = std::holds_alternative<std::string*>(field.value);
  if (const auto* array = node.as_array()) {
    const auto text = is_text && field.choices.empty() ? text_of(*array) : std::nullopt;
    require<ConfigError>(text.has_value(), origin, ": ", field.name, " takes one value, not an array");
    return *text;
  }
  const auto* value = node.as_string();
  const bool takes_number = lists_numbers(field) && node.is_number();
  if (((value != nullptr) == is_text || takes_number) &&
      !std::holds_alternative<std::vector<TableKeys>*>(field.value)) {
    if (value) return value->get();
    if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
    if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
    if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  }
  throw ConfigError(cat(origin, ": ", field.name, " must be ", kind_of(field), ", not ", shown(node)));
}

bool is_tables(const Field& field) {
  return std::holds_alternative<std::vector<TableKeys>*>(field.value);
}

// The value that the field takes from `text`, written as set() takes it again; the field stays as it is.
std::string checked_text(const Field& field, const std::string& text, const std::string& origin) {
  Field probe = field;
  bool flag = false;
  int64_t integer = 0;
  double number = 0;
  std::string words;
  if (std::holds_alternative<bool*>(field.value)) probe.value = &flag;
  if (std::holds_alternative<int64_t*>(field.value)) probe.value = &integer;
  if (std::holds_alternative<double*>(field.value)) probe.value = &number;
  if (std::holds_alternative<std::string*>(field.value)) probe.value = &words;
  assert(!is_tables(field) && "tables do not hold tables");
  probe.set(text, origin);
  return std::holds_alternative<std::string*>(field.value) ? words : probe.text();
}

TableKeys keys_of(const Field& field, const toml::table& table,
                  const std::function<std::string(const toml::node&)>& origin_of) {
  for (const auto& [key, node] : table) find_field(field.columns, key.str(), origin_of(node));
  TableKeys keys;
  for (const Field& column : field.columns)
    if (const toml::node* node = table.get(column.name))
      keys.emplace_back(column.name, checked_text(column, text_of(*node, column, origin_of(*node)), origin_of(*node)));
  return keys;
}

// `origin_of` gives the position of a table.
void set_tables(const Field& field, const toml::array& array,
                const std::function<std::string(const toml::node&, size_t index)>& origin_of) {
  std::vector<TableKeys> tables;
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string origin = origin_of(*array.get(i), i);
    const auto* table = array.get(i)->as_table();
    require<ConfigError>(table, origin, ": ", field.name, " takes tables, as in [{", field.columns.front().name,
                         " = ...}, ...]");
    tables.push_back(keys_of(field, *table, [&](const toml::node& node) { return origin_of(node, i); }));
  }
  *std::get<std::vector<TableKeys>*>(field.value) = std::move(tables);
}

// "kind = \"norms\"", one for each key of the table, as TOML writes it.
std::vector<std::string> assignments(const Field& field, const TableKeys& keys) {
  std::vector<std::string> lines;
  for (const auto& [key, text] : keys) {
    const auto column = std::ranges::find(field.columns, key, &Field::name);
    const bool quoted = std::holds_alternative<std::string*>(column->value);
    lines.push_back(cat(key, " = ", quoted ? toml_string(text) : text));
  }
  return lines;
}

// The key of [[section.key]], where the field is one of tables: its name without its section.
std::string key_of_tables(const Field& field) {
  const std::string prefix = field.section + "_";
  return is_tables(field) && field.name.starts_with(prefix) ? field.name.substr(prefix.size()) : "";
}

void require_section(const Fields& fields, std::string_view table, const std::string& origin) {
  std::vector<std::string> sections;
  for (const Field& field : fields)
    if (std::find(sections.begin(), sections.end(), field.section) == sections.end()) sections.push_back(field.section);
  require<ConfigError>(std::find(sections.begin(), sections.end(), table) != sections.end(), origin,
                       ": there is no table [", clipped(table), "]", suggestion(table, sections), "; there are ",
                       joined(sections, ", "));
}

// The field's name for a key of the section's table; empty: of no section.
std::string name_of_key(const Fields& fields, std::string_view section, std::string_view key) {
  for (const Field& field : fields)
    if (!section.empty() && field.section == section && key_of_tables(field) == key) return field.name;
  return std::string(key);
}

// `section`: whose table it is; empty: of no section.
void apply_keys(const Fields& fields, const toml::table& table, std::string_view section, std::string_view source,
                std::set<std::string>& seen) {
  const auto line_of = [&](const toml::node& node) { return cat(source, ":", node.source().begin.line); };
  for (const auto& [key, node] : table) {
    if (node.is_table()) continue;
    const std::string origin = line_of(node);
    const std::string name = name_of_key(fields, section, key.str());
    require<ConfigError>(seen.insert(name).second, origin, ": ", name, " is set twice");
    const Field& field = find_field(fields, name, origin);
    if (const auto* array = node.as_array(); array && is_tables(field))
      set_tables(field, *array, [&](const toml::node& one, size_t) { return line_of(one); });
    else
      set_field(fields, name, text_of(node, field, origin), origin);
  }
}

void apply_tables(const Fields& fields, const toml::table& table, std::string_view source,
                  std::set<std::string>& seen) {
  apply_keys(fields, table, "", source, seen);
  for (const auto& [key, node] : table) {
    const auto* inner = node.as_table();
    if (!inner) continue;
    const std::string origin = cat(source, ":", inner->source().begin.line);
    require_section(fields, key.str(), origin);
    apply_keys(fields, *inner, key.str(), source, seen);
    for (const Field& field : fields)
      require<ConfigError>(
          field.section != key.str() || key_of_tables(field).empty() || !(*inner)[key_of_tables(field)].is_table(),
          origin, ": [", key.str(), ".", key_of_tables(field), "] is an array of tables: write [[", key.str(), ".",
          key_of_tables(field), "]] over each of them");
    for (const auto& [name, deeper] : *inner)
      require<ConfigError>(!deeper.is_table(), source, ":", deeper.source().begin.line, ": [", key.str(), ".",
                           clipped(name.str()), "]: tables do not hold tables, only keys");
  }
}

// `text`, which need not be TOML, as a table. Errors name `where`, "line" included where the source has lines.
template <class Where>
toml::table parsed(std::string_view text, std::string_view source, const Where& where) {
  const std::string ascii = ascii_toml(text, source);
  try {
    return toml::parse(ascii, source);
  } catch (const toml::parse_error& e) {
    throw ConfigError(cat(where(e.source().begin.line), ": not valid TOML: ", e.description()));
  } catch (const ParserAssertion&) {
    throw ConfigError(cat(source, ": not valid TOML: the name of a table or key is invalid"));
  }
}

// Sets tables from one line: [{kind = "norms"}, {..}], or one table without the brackets; an empty line: no tables.
void set_tables(const Field& field, std::string_view line, std::string_view origin) {
  std::string text(line);
  if (text.empty()) text = "[]";
  if (text.front() == '{') text = "[" + text + "]";
  const toml::table table = parsed(field.name + " = " + text, origin, [&](auto) { return std::string(origin); });
  const auto* array = table.size() == 1 ? table.begin()->second.as_array() : nullptr;
  require<ConfigError>(array, origin, ": ", field.name, " = ", clipped(line), ": must be an array of tables, as in [{",
                       field.columns.front().name, " = ...}, ...]");
  set_tables(field, *array,
             [&](const toml::node&, size_t index) { return cat(origin, ": table ", index + 1, " of ", field.name); });
}

}  // namespace

Field Field::at_least(double bound) && {
  least = bound;
  return std::move(*this);
}
Field Field::above(double bound) && {
  least = bound;
  above_least = true;
  return std::move(*this);
}
Field Field::between(double low, double high) && {
  least = low;
  most = high;
  return std::move(*this);
}
namespace {

// The choices that are not lists of others, with commas.
std::vector<std::string> single_choices(std::vector<std::string> choices) {
  std::erase_if(choices, [](const std::string& choice) { return choice.find(',') != std::string::npos; });
  return choices;
}

const std::string* first_list_of(const std::vector<std::string>& choices) {
  const auto list = std::ranges::find_if(choices, [](const auto& one) { return one.find(',') != std::string::npos; });
  return list == choices.end() ? nullptr : &*list;
}

}  // namespace

Field Field::one_of(std::vector<std::string> allowed) && {
  choices = std::move(allowed);
  return std::move(*this);
}

Field Field::list_of(std::vector<std::string> names) && {
  parts = std::move(names);
  return std::move(*this);
}

std::string Field::type_name() const {
  if (std::holds_alternative<bool*>(value)) return "true|false";
  if (std::holds_alternative<int64_t*>(value)) return "integer";
  if (std::holds_alternative<double*>(value)) return "number";
  if (is_tables(*this)) return "tables";
  if (!parts.empty()) return joined(parts, "|") + ",...";
  if (choices.empty()) return "text";
  return joined(single_choices(choices), "|") + (first_list_of(choices) ? ",..." : "");
}

std::string Field::text() const {
  if (auto* flag = std::get_if<bool*>(&value)) return **flag ? "true" : "false";
  if (auto* integer = std::get_if<int64_t*>(&value)) return std::to_string(**integer);
  if (auto* number = std::get_if<double*>(&value)) {
    std::string digits = fmt::format("{}", **number);
    return digits.find_first_of(".en") == std::string::npos ? digits + ".0" : digits;
  }
  if (auto* tables = std::get_if<std::vector<TableKeys>*>(&value)) {
    std::vector<std::string> all;
    for (const TableKeys& keys : **tables) all.push_back("{" + joined(assignments(*this, keys), ", ") + "}");
    return "[" + joined(all, ", ") + "]";
  }
  return toml_string(*std::get<std::string*>(value));
}

void Field::set(std::string_view input, std::string_view origin) const {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(cat(origin, ": ", name, " = ", clipped(input), ": ", why));
  };
  const auto check_bounds = [&](double number) {
    if (!std::isfinite(number)) refuse("must be a finite number");
    if (number < least || (above_least && number == least))
      refuse(fmt::format("must be {} {}", above_least ? "above" : "at least", least));
    if (number > most) refuse(fmt::format("must be at most {}", most));
  };
  if (auto* flag = std::get_if<bool*>(&value)) {
    if (input != "true" && input != "false") refuse("must be true or false");
    **flag = input == "true";
  } else if (auto* integer = std::get_if<int64_t*>(&value)) {
    int64_t parsed = 0;
    if (!parse_integer(input, parsed)) refuse("must be a whole number");
    check_bounds(static_cast<double>(parsed));
    **integer = parsed;
  } else if (auto* number = std::get_if<double*>(&value)) {
    double parsed = 0;
    if (!parse_number(input, parsed)) refuse("must be a number");
    check_bounds(parsed);
    **number = parsed;
  } else if (is_tables(*this)) {
    set_tables(*this, input, origin);
  } else {
    if (!choices.empty() && std::find(choices.begin(), choices.end(), input) == choices.end())
      refuse(cat("must be one of ", joined(single_choices(choices), ", "), meant(input, choices),
                 first_list_of(choices) ? cat("; several may stand together, as in ", *first_list_of(choices)) : ""));
    if (input.find('\0') != std::string_view::npos || find_invalid_utf8(input) != std::string_view::npos)
      refuse("must be UTF-8 text without zero bytes");
    std::string text(input);
    if (lists_numbers(*this)) {
      text.clear();
      for (size_t begin = 0, end = 0; end != input.npos; begin = end + 1) {
        end = input.find(',', begin);
        double parsed = 0;
        std::string_view one = input.substr(begin, end - begin);
        while (one.starts_with(' ')) one.remove_prefix(1);
        if (!parse_number(one, parsed)) refuse("must be a number, or several with commas between them");
        check_bounds(parsed);
        text += fmt::format("{}{}", begin == 0 ? "" : ",", parsed);
      }
    }
    *std::get<std::string*>(value) = std::move(text);
  }
}

Fields join(std::initializer_list<std::pair<std::string, Fields>> sections) {
  Fields all;
  std::set<std::string> names;
  for (const auto& [section, fields] : sections) {
    for (Field field : fields) {
      [[maybe_unused]] const bool fresh = names.insert(field.name).second;
      assert(fresh && "two configuration fields share a name");
      if (field.section.empty()) field.section = section;
      all.push_back(std::move(field));
    }
  }
  return all;
}

std::string flag_name(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

void set_field(const Fields& fields, std::string_view key, std::string_view text, std::string_view origin) {
  const Field& field = find_field(fields, key, origin);
  const auto takes = [&](const Field& one) { return std::ranges::find(one.choices, text) != one.choices.end(); };
  const bool meant_another = !field.choices.empty() && !takes(field) && std::ranges::count_if(fields, takes) == 1;
  try {
    field.set(text, origin);
  } catch (const ConfigError& e) {
    if (!meant_another) throw;
    throw ConfigError(cat(e.what(), "; it is a choice of ", std::ranges::find_if(fields, takes)->name, ": write ",
                          std::ranges::find_if(fields, takes)->name, " = ", text));
  }
}

std::set<std::string> parse_toml(const Fields& fields, std::string_view text, std::string_view source) {
  const toml::table table = parsed(text, source, [&](auto line) { return cat(source, ":", line); });
  std::set<std::string> seen;
  apply_tables(fields, table, source, seen);
  return seen;
}

std::map<std::string, int64_t> lines_of_keys(const Fields& fields, std::string_view text, std::string_view source) {
  const toml::table table = parsed(text, source, [&](auto line) { return cat(source, ":", line); });
  std::map<std::string, int64_t> lines;
  const auto add = [&](const toml::table& keys, std::string_view section) {
    for (const auto& [key, node] : keys)
      if (!node.is_table())
        lines[name_of_key(fields, section, key.str())] = static_cast<int64_t>(node.source().begin.line);
  };
  add(table, "");
  for (const auto& [key, node] : table)
    if (const auto* inner = node.as_table()) add(*inner, key.str());
  return lines;
}

std::set<std::string> read_toml(const Fields& fields, const std::string& path) {
  constexpr uint64_t kLimit = 1 << 20;
  std::string text;
  try {
    text = read_file(path, kLimit);
  } catch (const IoError& e) {
    throw ConfigError(e.what());
  }
  return parse_toml(fields, text, path);
}

std::string write_toml(const Fields& fields, bool with_help) {
  std::string out, section, tables;  // tables of the section, which stand after its keys
  const auto end_section = [&] { out += std::exchange(tables, {}); };
  for (const auto& field : fields) {
    if (field.section != section) {
      end_section();
      section = field.section;
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    const std::string key = key_of_tables(field);
    std::string& to = key.empty() ? out : tables;
    if (with_help) to += fmt::format("# {} ({})\n", field.help, field.type_name());
    if (key.empty()) {
      to += fmt::format("{} = {}\n", field.name, field.text());
      continue;
    }
    for (const TableKeys& keys : *std::get<std::vector<TableKeys>*>(field.value)) {
      to += fmt::format("\n[[{}.{}]]\n", section, key);
      for (const std::string& line : assignments(field, keys)) to += line + "\n";
    }
  }
  end_section();
  return out;
}

}  // namespace witan
