#include "witan/data/arrow/arrow_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/arrow/arrays.h"
#include "witan/data/tables/column_path.h"
#include "witan/data/tables/damage.h"
#include "witan/data/tables/json_row.h"

namespace witan::arrow {

using tables::ColumnKind;
using tables::intact;

namespace {

// Marks the fields of the path to `target`. Whether it is below.
bool want_path(Field& field, const Field* target) {
  field.wanted = &field == target;
  for (Field& child : field.children) field.wanted = want_path(child, target) || field.wanted;
  return field.wanted;
}

// Marks what can be written as JSON. Whether anything can.
bool want_writable(Field& field) {
  field.wanted = false;
  if (field.kind == ColumnKind::other) return false;
  field.wanted = field.children.empty() && field.kind != ColumnKind::structure;
  for (Field& child : field.children) field.wanted = want_writable(child) || field.wanted;
  return field.wanted;
}

// Lists the columns below the field that are not read.
void list_left_out(const Field& field, const std::string& path, std::vector<std::string>& out) {
  for (const Field& child : field.children) {
    const std::string name = field.kind == ColumnKind::list ? path : path + (path.empty() ? "" : ".") + child.name;
    if (child.wanted)
      list_left_out(child, name, out);
    else
      out.push_back(name);
  }
}

bool has_list(const Field& field) {
  if (field.kind == ColumnKind::list) return true;
  return std::ranges::any_of(field.children, [](const Field& child) { return child.wanted && has_list(child); });
}

class ArrowRows final : public TableReader {
 public:
  ArrowRows(std::string name, std::unique_ptr<tables::RandomAccess> bytes, const TableColumns& columns)
      : name_(std::move(name)),
        bytes_(std::move(bytes)),
        batches_(*bytes_),
        json_(columns.as_json()),
        whole_(columns.whole),
        row_bytes_(columns.row_bytes),
        row_(columns.row_bytes) {
    tables::named([&] { read_schema(); }, [&] { return name_ + ": schema"; });
    json_ ? choose_columns(columns) : choose_text(columns);
  }

  bool next(TableCell& cell) override {
    return tables::named(
        [&] { return find_next(cell); },
        [&] {
          return cat(name_,
                     batch_number_ < 0 ? ": before the first record batch" : cat(": record batch ", batch_number_),
                     current_.empty() ? "" : cat(", column ", clipped(current_)));
        });
  }

  uint64_t offset() const override { return messages_->position(); }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> names;
    list_left_out(root_, "", names);
    return names;
  }

 private:
  void read_schema() {
    messages_ = std::make_unique<MessageReader>(*bytes_);
    Message message;
    intact(messages_->next(message) && message.schema, "it does not begin with a schema, as Arrow files do");
    root_ = std::move(*message.schema);
  }

  void choose_text(const TableColumns& columns) {
    const Field& found = tables::find_text_column(root_, columns, name_);
    want_path(root_, &found);
    is_list_ = has_list(root_);
    current_ = columns.text;
  }

  void choose_columns(const TableColumns& wanted) {
    std::vector<std::string> names;
    for (Field& column : root_.children) {
      names.push_back(column.name);
      if (wanted.whole || std::ranges::find(wanted.json, column.name) != wanted.json.end())
        root_.wanted = want_writable(column) || root_.wanted;
    }
    if (!root_.wanted && whole_) refuse_rows(name_, names);
    if (!root_.wanted) refuse_column(name_, wanted, names);
  }

  bool find_next(TableCell& cell) {
    while (next_text_ == texts_.size()) {
      if (row_in_batch_ == columns_.length() && !read_batch()) return false;
      if (row_in_batch_ == columns_.length()) continue;
      begin_row(row_in_batch_++);
      if (!json_) continue;
      cell = {row_.line(), ++rows_, {}};
      if (row_.too_long() || cell.text.size() > row_bytes_)
        cell.reason = cat("the row is longer than ", row_bytes_, " bytes");
      return true;
    }
    const Text& text = texts_[next_text_++];
    if (next_text_ == 1) ++rows_;
    cell = {text.bytes, rows_, text.is_null && !is_list_ ? "the text is null" : ""};
    if (text.bytes.size() > row_bytes_) cell.reason = cat("the text is longer than ", row_bytes_, " bytes");
    return true;
  }

  // The next record batch, with the dictionaries before it. False at the end.
  bool read_batch() {
    for (Message message; messages_->next(message);) {
      if (message.kind == Message::Kind::dictionary) read_dictionary(message, root_);
      if (message.kind != Message::Kind::batch) continue;
      ++batch_number_;
      columns_ = batches_.read(message, root_, dictionaries_);
      row_in_batch_ = 0;
      return true;
    }
    return false;
  }

  void read_dictionary(const Message& message, const Field& field) {
    for (const Field& child : field.children) {
      if (!child.wanted) continue;
      read_dictionary(message, child);
      if (child.dictionary != message.dictionary) continue;
      if (message.is_delta)
        throw tables::Unsupported{"dictionaries that grow from batch to batch are not read; write it again without"};
      dictionaries_[message.dictionary] = std::make_shared<const Array>(batches_.read_dictionary(message, child));
    }
  }

  void begin_row(int64_t row) {
    values_ = 0;
    texts_.clear();
    next_text_ = 0;
    if (json_) {
      row_.clear();
      write_struct(columns_, row);
    } else {
      collect(columns_, row);
      if (texts_.empty()) texts_.push_back({{}, true});  // an empty list
    }
  }

  // A list within lists may point to the same items again and again.
  void count_value() {
    ++values_;
    intact(values_ <= 1024 + 64 * row_bytes_, "a row has ", values_, " values and more");
  }

  void collect(const Array& array, int64_t i) {
    count_value();
    const Field& field = array.field();
    if (array.is_null(i))
      texts_.push_back({{}, true});
    else if (const Array* dictionary = array.dictionary())
      collect(*dictionary, array.index(i));
    else if (field.kind == ColumnKind::structure)
      for (size_t c = 0; c < field.children.size(); ++c) {
        if (field.children[c].wanted) collect(array.child(c), i);
      }
    else if (field.kind == ColumnKind::list)
      collect_items(array, i);
    else
      texts_.push_back({array.text(i), false});
  }

  void collect_items(const Array& array, int64_t i) {
    const Array::Range items = array.items(i);
    if (items.begin == items.end) texts_.push_back({{}, true});
    for (int64_t item = items.begin; item < items.end; ++item) collect(array.child(0), item);
  }

  void write(const Array& array, int64_t i) {
    const Field& field = array.field();
    if (const Array* dictionary = array.dictionary()) {
      const int64_t at = array.index(i);
      return dictionary->is_null(at) ? row_.null() : write(*dictionary, at);
    }
    switch (field.kind) {
      case ColumnKind::text:
        return row_.text(array.text(i));
      case ColumnKind::integer:
        return row_.integer(array.integer(i));
      case ColumnKind::natural:
        return row_.natural(array.natural(i));
      case ColumnKind::real:
        return row_.real(array.real(i));
      case ColumnKind::boolean:
        return row_.boolean(array.boolean(i));
      case ColumnKind::structure:
        return write_struct(array, i);
      case ColumnKind::list:
        return write_list(array, i);
      case ColumnKind::null:
      case ColumnKind::other:
        break;
    }
  }

  void write_struct(const Array& array, int64_t i) {
    const std::vector<Field>& fields = array.field().children;
    row_.begin_object();
    for (size_t c = 0; c < fields.size(); ++c) {
      if (!fields[c].wanted) continue;
      count_value();
      if (&array == &columns_) current_ = fields[c].name;
      const bool null = array.child(c).is_null(i);
      if (null && !whole_) continue;
      row_.key(fields[c].name);
      null ? row_.null() : write(array.child(c), i);
    }
    row_.end_object();
  }

  void write_list(const Array& array, int64_t i) {
    const Array::Range items = array.items(i);
    const Array& child = array.child(0);
    row_.begin_list();
    for (int64_t item = items.begin; item < items.end; ++item) {
      count_value();
      child.is_null(item) ? row_.null() : write(child, item);
    }
    row_.end_list();
  }

  struct Text {
    std::string_view bytes;
    bool is_null = false;
  };

  std::string name_;
  std::unique_ptr<tables::RandomAccess> bytes_;
  std::unique_ptr<MessageReader> messages_;
  BatchReader batches_;
  Field root_;  // a struct of the columns
  bool json_ = false, whole_ = false;
  uint64_t row_bytes_;
  tables::JsonRow row_;
  bool is_list_ = false;  // whether a list is on the way to the text
  Dictionaries dictionaries_;
  Array columns_;  // of the batch
  int64_t batch_number_ = -1, row_in_batch_ = 0, rows_ = 0;
  std::vector<Text> texts_;  // of the row
  size_t next_text_ = 0;
  uint64_t values_ = 0;  // of the row
  std::string current_;  // the column that messages name
};

}  // namespace
}  // namespace witan::arrow

namespace witan {

std::unique_ptr<TableReader> open_arrow(const fs::path& path, const TableColumns& columns) {
  return read_arrow(path.string(), tables::open_file(path), columns);
}

std::unique_ptr<TableReader> read_arrow(std::string name, std::unique_ptr<tables::RandomAccess> bytes,
                                        const TableColumns& columns) {
  return std::make_unique<arrow::ArrowRows>(std::move(name), std::move(bytes), columns);
}

}  // namespace witan
