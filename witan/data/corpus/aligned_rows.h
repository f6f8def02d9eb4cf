// A column of a table whose rows count only where other columns have a text, too: what is read of one and of another
// has the same documents at the same numbers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/data/tables/table_reader.h"

namespace witan::tables {

// Readers of one table, each of one column.
struct AlignedColumn {
  std::string name;
  std::unique_ptr<TableReader> cells;
};

// Gives the cells of the first column. A row is unusable as a whole, in one cell with the reason, if any of the columns
// has an unusable text in it, or another number of texts (in a list) than the first. Throws what the readers throw, and
// CorruptionError, naming `file`, if a column ends before another.
std::unique_ptr<TableReader> align_rows(std::string file, std::vector<AlignedColumn> columns);

}  // namespace witan::tables
