#include "witan/data/tables/column_path.h"

namespace witan::tables {

const char* describe(ColumnKind kind) {
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

}  // namespace witan::tables
