// Rows of a columnar file, one after the other: the texts of a column, or rows as lines of JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// Names the columns to read; the bytes of all others are skipped.
struct TableColumns {
  // The column of the texts: its name, or a path through structs and lists with dots ("meta.pages.text"). A list holds
  // one text after the other.
  std::string text = "text";
  // Not empty: rows are lines of JSON with those of these columns that the file has, without nulls.
  std::vector<std::string> json = {};
  // Longer texts and lines are unusable.
  uint64_t row_bytes = 64 << 20;
  // Rows are lines of JSON with all columns that JSON has a type for, nulls included.
  bool whole = false;
  // The flag that names the column, for messages.
  std::string option = "--json-key";

  bool as_json() const { return whole || !json.empty(); }
};

// A text, or a row as JSON.
struct TableCell {
  std::string_view text;  // of any bytes; valid until the next call of next()
  int64_t row = 0;        // of the file, from 1; cells of one list have the same
  std::string reason;     // why it is unusable; empty: it is usable
};

// Not thread-safe.
class TableReader {
 public:
  virtual ~TableReader() = default;

  // The next cell; false at the end. A null is unusable; an empty list and a null in a list are empty texts. Throws
  // IoError, CorruptionError naming file, place and reason, and DataError for what the format has and Witan does not
  // read, with the way out.
  virtual bool next(TableCell& cell) = 0;

  // Bytes of the file after which the last row lies, the measure of progress.
  virtual uint64_t offset() const = 0;

  // Columns and fields of them, as paths with dots, that whole rows are written without: JSON has no type for them.
  virtual std::vector<std::string> left_out() const { return {}; }
};

// The error for a file that has not the columns that are wanted: DataError naming the first of them, the nearest, all
// that there are, and the flag that names another.
[[noreturn]] void refuse_column(const std::string& file, const TableColumns& wanted,
                                const std::vector<std::string>& columns);
// The error for a file none of whose columns can be written as JSON: DataError naming them.
[[noreturn]] void refuse_rows(const std::string& file, const std::vector<std::string>& columns);

}  // namespace witan

namespace witan::tables {

// A reader of one column of a table. Columns that are aligned have the same documents at the same numbers.
struct AlignedColumn {
  std::string name;
  std::unique_ptr<TableReader> cells;
};

// Gives the cells of the first column. A row is unusable as a whole, in one cell with the reason, if any of the columns
// has an unusable text in it, or another number of texts (in a list) than the first. Throws what the readers throw, and
// CorruptionError, naming `file`, if a column ends before another.
std::unique_ptr<TableReader> align_rows(std::string file, std::vector<AlignedColumn> columns);

}  // namespace witan::tables
