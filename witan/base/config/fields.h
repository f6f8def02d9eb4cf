// Configuration fields. A component's Config struct lists its fields once; parsing, help, validation and the dumped
// configuration all read that list. Keys are Megatron-LM's names in snake case; flags are the same with dashes.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace witan {

// One table of an array of tables: the keys that it sets, in the order of Field::columns, with their values as
// Field::set() takes them.
using TableKeys = std::vector<std::pair<std::string, std::string>>;

// One key of a configuration, bound to the member it sets. The pointer must outlive the Field.
struct Field {
  using Value = std::variant<bool*, int64_t*, double*, std::string*, std::vector<TableKeys>*>;

  std::string name;  // snake_case
  Value value;
  std::string help = {};     // one line
  std::string section = {};  // heading in --help and in the dumped TOML; set by the composing config
  double least = -std::numeric_limits<double>::infinity();  // numbers: inclusive bounds
  double most = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  // strings: the allowed values, or empty for any
  std::vector<std::string> parts = {};  // strings that are lists: what is separated by commas; checked by who reads it
  bool above_least = false;             // numbers: `least` itself is excluded
  // Arrays of tables: the keys that a table may set, with their types and limits. What they point to is not touched.
  std::vector<Field> columns = {};

  // Fluent limits, so that a list of fields reads as a table.
  Field at_least(double bound) &&;
  Field above(double bound) &&;
  Field between(double low, double high) &&;
  Field one_of(std::vector<std::string> allowed) &&;
  Field list_of(std::vector<std::string> names) &&;

  std::string type_name() const;  // "true|false", "integer", "number", "text", "tables", the choices, "a|b,..."
  std::string text() const;       // the current value as TOML writes it, on one line
  // Parses and checks `text`; throws ConfigError("ORIGIN: KEY = TEXT: why").
  void set(std::string_view text, std::string_view origin) const;
};

using Fields = std::vector<Field>;

// Fields of several components in one list. Duplicate names are an internal error (assert).
Fields join(std::initializer_list<std::pair<std::string, Fields>> sections);

// "--moe-router-topk" for "moe_router_topk".
std::string flag_name(std::string_view key);

// Sets a field by key. An unknown key throws ConfigError with a suggestion.
void set_field(const Fields& fields, std::string_view key, std::string_view text, std::string_view origin);

// Reads a TOML file and returns the keys that it sets. Tables are the fields' sections and only group keys ([model]
// num_layers = 2 equals num_layers = 2); a text may be written as an array of whole numbers (moe_layer_freq = [1, 0]).
// The key optimizer_groups of section optimizer, an array of tables, is written [[optimizer.groups]]; on one line, as a
// flag has it, optimizer_groups = [{kind = "norms", lr = 1e-3}, {match = "*.weight"}].
// Throws ConfigError naming file and line for syntax errors, unknown keys and tables (with a suggestion), duplicates,
// wrong types and values out of range.
std::set<std::string> read_toml(const Fields& fields, const std::string& path);
std::set<std::string> parse_toml(const Fields& fields, std::string_view toml, std::string_view source);

// The resolved configuration as TOML, one table per section, with each field's help as a comment when asked.
std::string write_toml(const Fields& fields, bool with_help = false);

// The line, counted from 1, on which each of the fields' keys is set; of [[optimizer.groups]] the first table's. Keys
// are found as by parse_toml(), which has to accept the text: what it would refuse is left out here. Throws ConfigError
// where the text is no TOML.
std::map<std::string, int64_t> lines_of_keys(const Fields& fields, std::string_view toml, std::string_view source);

}  // namespace witan
