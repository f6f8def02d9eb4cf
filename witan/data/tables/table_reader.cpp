#include "witan/data/tables/table_reader.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/tables/damage.h"

namespace witan {
namespace {

std::string names_of_columns(const std::vector<std::string>& columns) {
  constexpr size_t kShown = 20;
  std::string shown;
  for (size_t i = 0; i < std::min(columns.size(), kShown); ++i) shown += (i == 0 ? "" : ", ") + clipped(columns[i]);
  if (columns.size() > kShown) shown += cat(" and ", columns.size() - kShown, " more");
  return columns.empty() ? "none" : shown;
}

}  // namespace

void refuse_column(const std::string& file, const TableColumns& wanted, const std::vector<std::string>& columns) {
  const std::string& name = wanted.as_json() ? wanted.json.front() : wanted.text;
  throw DataError(cat(file, ": there is no column ", clipped(name), suggestion(name, columns), "; it has ",
                      names_of_columns(columns), ": name one with ", wanted.option));
}

void refuse_rows(const std::string& file, const std::vector<std::string>& columns) {
  throw DataError(cat(file, ": it has no column that can be written as JSON, but ", names_of_columns(columns),
                      ": convert them to text or numbers first"));
}

}  // namespace witan

namespace witan::tables {
namespace {

class AlignedRows final : public TableReader {
 public:
  AlignedRows(std::string file, std::vector<AlignedColumn> columns) : file_(std::move(file)) {
    for (AlignedColumn& column : columns) {
      columns_.push_back({std::move(column.name), std::move(column.cells), {}, true});
      step(columns_.back());
    }
  }

  bool next(TableCell& cell) override {
    if (next_ == texts_.size() && !read_row()) return false;
    cell = {texts_[next_], row_, next_ == 0 ? reason_ : ""};
    ++next_;
    return true;
  }

  uint64_t offset() const override { return columns_.front().cells->offset(); }

 private:
  // A column, and its cell that has not been taken.
  struct Column {
    std::string name;
    std::unique_ptr<TableReader> cells;
    TableCell ahead;
    bool more;
  };

  static void step(Column& column) { column.more = column.cells->next(column.ahead); }

  bool read_row() {
    if (!columns_.front().more) {
      for (const Column& column : columns_) check(column, !column.more);
      return false;
    }
    row_ = columns_.front().ahead.row;
    reason_.clear();
    texts_.clear();
    next_ = 0;
    take_cells(columns_.front(), [&](const TableCell& cell) { texts_.emplace_back(cell.text); });
    for (size_t c = 1; c < columns_.size(); ++c) {
      size_t texts = 0;
      take_cells(columns_[c], [&](const TableCell&) { ++texts; });
      if (reason_.empty() && texts != texts_.size())
        reason_ = cat("the row has ", texts_.size(), " texts in the column ", clipped(columns_.front().name), " and ",
                      texts, " in ", clipped(columns_[c].name));
    }
    if (!reason_.empty()) texts_.resize(1);
    return true;
  }

  // Takes the cells of the row, at least one.
  template <class Take>
  void take_cells(Column& column, const Take& take) {
    check(column, column.more && column.ahead.row == row_);
    for (; column.more && column.ahead.row == row_; step(column)) {
      if (reason_.empty() && !column.ahead.reason.empty())
        reason_ = cat("column ", clipped(column.name), ": ", column.ahead.reason);
      take(column.ahead);
    }
  }

  void check(const Column& column, bool aligned) const {
    named([&] { intact(aligned, "it has another number of rows than the column ", clipped(columns_.front().name)); },
          [&] { return cat(file_, ": column ", clipped(column.name)); });
  }

  std::string file_;
  std::vector<Column> columns_;
  int64_t row_ = 0;
  std::string reason_;              // why the row is unusable
  std::vector<std::string> texts_;  // of the row; copied, since its end is known only after it
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<TableReader> align_rows(std::string file, std::vector<AlignedColumn> columns) {
  return std::make_unique<AlignedRows>(std::move(file), std::move(columns));
}

}  // namespace witan::tables
