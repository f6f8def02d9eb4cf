#include <algorithm>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/data/parquet/parquet_file.h"
#include "witan/data/tables/damage.h"
#include "witan/data/tables/json_row.h"

namespace witan::parquet {

using tables::intact;

namespace {

using Kind = tables::ColumnKind;

// The wanted columns of the root, as far as they can be written.
Node choose_columns(const Schema& schema, const TableColumns& wanted, const std::string& file) {
  Node chosen;
  chosen.kind = Kind::structure;
  std::vector<std::string> names;
  for (const Node& column : schema.root.children) {
    names.push_back(column.name);
    if (!wanted.whole && std::ranges::find(wanted.json, column.name) == wanted.json.end()) continue;
    Node kept = writable_as_json(column);
    if (kept.kind == Kind::other) continue;
    chosen.leaves.insert(chosen.leaves.end(), kept.leaves.begin(), kept.leaves.end());
    chosen.children.push_back(std::move(kept));
  }
  if (chosen.children.empty() && wanted.whole) refuse_rows(file, names);
  if (chosen.children.empty()) refuse_column(file, wanted, names);
  return chosen;
}

// Lists the columns of the tree that `kept`, a part of it, lacks.
void list_left_out(const Node& all, const Node& kept, const std::string& path, std::vector<std::string>& out) {
  for (const Node& child : all.children) {
    const std::string name = all.kind == Kind::list ? path : path + (path.empty() ? "" : ".") + child.name;
    const auto same = std::ranges::find(kept.children, child.name, &Node::name);
    if (same == kept.children.end())
      out.push_back(name);
    else
      list_left_out(child, *same, name, out);
  }
}

class JsonRows final : public TableReader {
 public:
  JsonRows(std::unique_ptr<const ParquetFile> file, const TableColumns& columns)
      : file_(std::move(file)),
        root_(choose_columns(file_->schema(), columns, file_->name())),
        whole_(columns.whole),
        row_bytes_(columns.row_bytes),
        row_(columns.row_bytes) {
    file_->check_readable(root_.leaves);
    columns_.resize(file_->schema().leaves.size());
    for (const int leaf : root_.leaves)
      columns_[static_cast<size_t>(leaf)] =
          std::make_unique<ColumnReader>(file_->bytes(), file_->schema().leaves[static_cast<size_t>(leaf)]);
    current_ = &first(root_);
  }

  bool next(TableCell& cell) override {
    return tables::named([&] { return read_row(cell); },
                         [&] { return file_->place(group_, current_->leaf(), current_->page()); });
  }

  uint64_t offset() const override {
    return group_ == file_->row_groups().size() ? file_->bytes().size() : columns_[leaf_of(root_)]->position();
  }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> names;
    list_left_out(file_->schema().root, root_, "", names);
    return names;
  }

 private:
  static size_t leaf_of(const Node& node) { return static_cast<size_t>(node.leaves.front()); }

  // The column that shows whether the node is present; later messages name it.
  ColumnReader& first(const Node& node) {
    current_ = columns_[leaf_of(node)].get();
    return *current_;
  }

  bool read_row(TableCell& cell) {
    while (!open_ || row_in_group_ == file_->row_groups()[group_].rows) {
      if (open_) end_group();
      if (group_ == file_->row_groups().size()) return false;
      begin_group();
    }
    entries_ = 0;
    row_.clear();
    write_struct(root_);
    for (const int leaf : root_.leaves) {
      current_ = columns_[static_cast<size_t>(leaf)].get();
      intact(current_->repetition() == 0, "it does not end row ", row_in_group_, " of the row group where others do");
    }
    ++row_in_group_;
    cell.row = ++rows_;
    cell.text = row_.line();
    cell.reason = row_.too_long() || cell.text.size() > row_bytes_
                      ? cat("the row is longer than ", row_bytes_, " bytes")
                      : std::string();
    return true;
  }

  void begin_group() {
    for (const int leaf : root_.leaves) {
      current_ = columns_[static_cast<size_t>(leaf)].get();
      current_->open(file_->row_groups()[group_].columns[static_cast<size_t>(leaf)]);
      intact(current_->repetition() == 0, "its first value continues a row");
    }
    row_in_group_ = 0;
    open_ = true;
  }

  void end_group() {
    for (const int leaf : root_.leaves) {
      current_ = columns_[static_cast<size_t>(leaf)].get();
      intact(current_->at_end(), "it has more rows than its row group");
    }
    open_ = false;
    ++group_;
  }

  bool is_null(const Node& node) { return first(node).definition() < node.definition || node.kind == Kind::null; }

  // Passes the one entry that each column below the node has where the node is null or an empty list.
  void pass(const Node& node) {
    for (const int leaf : node.leaves) advance(*columns_[static_cast<size_t>(leaf)]);
  }

  void advance(ColumnReader& column) {
    current_ = &column;
    // A row of more entries than this is too long by far; and runs of levels can declare billions in few bytes.
    ++entries_;
    intact(entries_ <= 1024 + 64 * row_bytes_, "a row has ", entries_, " values and more");
    intact(!column.at_end(), "the column has fewer rows than its row group");
    column.next();
  }

  void write(const Node& node) {
    if (node.kind == Kind::structure) return write_struct(node);
    if (node.kind == Kind::list) return write_list(node);
    write_leaf(node);
  }

  void write_struct(const Node& node) {
    row_.begin_object();
    for (const Node& child : node.children) {
      const bool null = is_null(child);
      if (whole_ || !null) row_.key(child.name);
      if (null) {
        if (whole_) row_.null();
        pass(child);
      } else {
        write(child);
      }
    }
    row_.end_object();
  }

  void write_list(const Node& node) {
    const Node& item = node.children.front();
    row_.begin_list();
    if (first(node).definition() < node.item_definition) {
      pass(node);
      return row_.end_list();
    }
    do {
      if (is_null(item)) {
        row_.null();
        pass(item);
      } else {
        write(item);
      }
    } while (first(node).repetition() == node.item_repetition);
    row_.end_list();
  }

  void write_leaf(const Node& node) {
    ColumnReader& column = first(node);
    intact(column.has_value(), "a value is missing");
    const Value& value = column.value();
    if (node.kind == Kind::text)
      row_.text(value.bytes);
    else if (node.kind == Kind::integer)
      row_.integer(value.integer);
    else if (node.kind == Kind::natural)
      row_.natural(column.leaf().physical == Physical::int32 ? static_cast<uint32_t>(value.integer)
                                                             : static_cast<uint64_t>(value.integer));
    else if (node.kind == Kind::real)
      row_.real(value.real);
    else
      row_.boolean(value.boolean);
    advance(column);
  }

  std::unique_ptr<const ParquetFile> file_;
  Node root_;
  bool whole_;
  uint64_t row_bytes_;
  tables::JsonRow row_;
  std::vector<std::unique_ptr<ColumnReader>> columns_;  // by leaf; null for those that are not read
  ColumnReader* current_ = nullptr;                     // what messages name
  size_t group_ = 0;
  bool open_ = false;
  int64_t row_in_group_ = 0, rows_ = 0;
  uint64_t entries_ = 0;  // of the row
};

}  // namespace

std::unique_ptr<TableReader> json_rows(std::unique_ptr<const ParquetFile> file, const TableColumns& columns) {
  return std::make_unique<JsonRows>(std::move(file), columns);
}

}  // namespace witan::parquet
