#include <utility>

#include "witan/base/error.h"
#include "witan/data/parquet/parquet_file.h"
#include "witan/data/tables/damage.h"

namespace witan::parquet {

using tables::intact;

namespace {

class TextRows final : public TableReader {
 public:
  TextRows(std::unique_ptr<const ParquetFile> file, const TableColumns& columns)
      : file_(std::move(file)),
        leaf_(file_->schema().leaves[static_cast<size_t>(
            tables::find_text_column(file_->schema().root, columns, file_->name()).leaf)]),
        row_bytes_(columns.row_bytes),
        column_(file_->bytes(), leaf_) {
    file_->check_readable({leaf_.index});
  }

  bool next(TableCell& cell) override {
    return tables::named([&] { return find_next(cell); }, [&] { return file_->place(group_, leaf_, column_.page()); });
  }

  uint64_t offset() const override { return done() ? file_->bytes().size() : column_.position(); }

 private:
  bool done() const { return group_ == file_->row_groups().size(); }

  bool find_next(TableCell& cell) {
    if (open_) column_.next();
    while (!open_ || column_.at_end()) {
      if (open_) end_group();
      if (done()) return false;
      const RowGroup& group = file_->row_groups()[group_];
      rows_ = 0;
      column_.open(group.columns[static_cast<size_t>(leaf_.index)]);
      open_ = true;
    }
    describe(cell);
    return true;
  }

  void end_group() {
    const int64_t rows = file_->row_groups()[group_].rows;
    intact(rows_ == rows, "the column has ", rows_, " rows, its row group ", rows);
    rows_before_ += rows;
    open_ = false;
    ++group_;
  }

  void describe(TableCell& cell) {
    if (column_.repetition() == 0) ++rows_;
    intact(rows_ > 0, "its first value continues a row");
    cell.row = rows_before_ + rows_;
    cell.text = {};
    cell.reason.clear();
    if (column_.has_value() && leaf_.meaning != Meaning::nothing)
      cell.text = column_.value().bytes;
    else if (leaf_.most_repetition == 0)
      cell.reason = "the text is null";
    if (cell.text.size() > row_bytes_) cell.reason = cat("the text is longer than ", row_bytes_, " bytes");
  }

  std::unique_ptr<const ParquetFile> file_;
  const Leaf& leaf_;
  uint64_t row_bytes_;
  ColumnReader column_;
  size_t group_ = 0;
  bool open_ = false;
  int64_t rows_before_ = 0, rows_ = 0;  // of the row groups before, and so far of this one
};

}  // namespace

std::unique_ptr<TableReader> text_rows(std::unique_ptr<const ParquetFile> file, const TableColumns& columns) {
  return std::make_unique<TextRows>(std::move(file), columns);
}

}  // namespace witan::parquet
