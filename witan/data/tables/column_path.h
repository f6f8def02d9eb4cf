// Kinds of columns, and finding a column by a path of names. A node of a tree of columns has a `name`, a `kind` and
// `children`: the fields of a struct, or the one item of a list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/tables/table_reader.h"

namespace witan::tables {

// `null`: a type that has no values, as writers give a column in which they found none.
enum class ColumnKind : uint8_t { text, integer, natural, real, boolean, structure, list, null, other };

// Describes the values of a column of this kind: "integers".
inline const char* describe(ColumnKind kind) {
  switch (kind) {
    case ColumnKind::text:
      return "text";
    case ColumnKind::integer:
    case ColumnKind::natural:
      return "integers";
    case ColumnKind::real:
      return "real numbers";
    case ColumnKind::boolean:
      return "booleans";
    case ColumnKind::structure:
      return "structs (name a field of them, COLUMN.FIELD)";
    case ColumnKind::list:
      return "lists";
    case ColumnKind::null:
      return "nulls";
    case ColumnKind::other:
      break;
  }
  return "values of another type";
}

// The column at the end of the path below `column`: names of fields with dots between them, which may themselves have
// dots; lists need not be named. Null if there is none.
template <class Column>
const Column* find_column(const Column& column, std::string_view path) {
  const Column* at = &column;
  while (at->kind == ColumnKind::list) at = &at->children.front();
  if (path.empty() || at->kind == ColumnKind::null) return at;  // whose fields are null, too
  if (at->kind != ColumnKind::structure) return nullptr;
  for (const Column& child : at->children)
    if (path == child.name) return find_column(child, {});
  for (const Column& child : at->children)
    if (path.starts_with(child.name) && path.substr(child.name.size()).starts_with('.'))
      if (const Column* found = find_column(child, path.substr(child.name.size() + 1))) return found;
  return nullptr;
}

// Finds the column of texts, all of which may be null. Throws DataError naming the existing columns if there is none,
// or saying that it is not text; `file` is for messages.
template <class Column>
const Column& find_text_column(const Column& root, const TableColumns& wanted, const std::string& file) {
  const std::string& path = wanted.text;
  const Column* found = path.empty() ? nullptr : find_column(root, path);
  if (!found) {
    std::vector<std::string> names;
    for (const Column& child : root.children) names.push_back(child.name);
    refuse_column(file, wanted, names);
  }
  require<DataError>(found->kind == ColumnKind::text || found->kind == ColumnKind::null, file, ": the column ",
                     clipped(path), " holds ", describe(found->kind), ", not text; name another with ", wanted.option);
  return *found;
}

}  // namespace witan::tables
