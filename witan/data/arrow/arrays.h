// Columns of a record batch in memory: the buffers of those fields that are wanted, decompressed and checked.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "witan/data/arrow/messages.h"
#include "witan/data/tables/codecs.h"
#include "witan/data/tables/random_access.h"

namespace witan::arrow {

// Values of a field. What a row needs is checked when it is asked for: all functions throw tables::Damaged, and take
// indices within [0, length).
class Array {
 public:
  int64_t length() const { return length_; }
  const Field& field() const { return *field_; }
  bool is_null(int64_t i) const;

  // The i-th value. Which of these may be called depends on the kind of the field.
  std::string_view text(int64_t i) const;
  int64_t integer(int64_t i) const;
  uint64_t natural(int64_t i) const;
  double real(int64_t i) const;
  bool boolean(int64_t i) const;
  struct Range {
    int64_t begin = 0, end = 0;
  };
  Range items(int64_t i) const;  // of a list, in its child
  // A field of a struct, or the items of a list. Children not requested are empty.
  const Array& child(size_t index) const { return children_[index]; }

  // The dictionary that the values lie in, and the index of the i-th value in it. Null: the values lie here.
  const Array* dictionary() const { return dictionary_.get(); }
  int64_t index(int64_t i) const;

 private:
  friend class BatchReader;
  template <class T>
  T number(const std::string& buffer, int64_t i) const;
  std::string_view view(int64_t i) const;

  const Field* field_ = nullptr;
  int64_t length_ = 0;
  std::string validity_, offsets_, values_;  // views are values
  std::vector<std::string> blocks_;          // that views point into
  std::vector<Array> children_;
  std::shared_ptr<const Array> dictionary_;
};

// Dictionaries by id.
using Dictionaries = std::map<int64_t, std::shared_ptr<const Array>>;

// Not thread-safe. Throws tables::Damaged, tables::Unsupported, IoError.
class BatchReader {
 public:
  explicit BatchReader(const tables::RandomAccess& file) : file_(file) {}

  // The columns of a record batch, as a struct of all; `root` must outlive it.
  Array read(const Message& message, const Field& root, const Dictionaries& dictionaries);
  // The values of a dictionary, of which `field` is a user.
  Array read_dictionary(const Message& message, const Field& field);

 private:
  Array read_field(const Field& field, bool is_dictionary);
  void read_values(Array& array);
  void read_views(Array& array, bool wanted);
  void read_children(Array& array);
  const Buffer& next_buffer();
  std::string load(const Buffer& buffer);
  std::string load_next(bool wanted);

  const tables::RandomAccess& file_;
  tables::Decompressor decompressor_;
  const Message* message_ = nullptr;
  const Dictionaries* dictionaries_ = nullptr;
  size_t node_ = 0, buffer_ = 0, variadic_ = 0;  // the next ones
  uint64_t loaded_ = 0;                          // bytes of the message's body
};

}  // namespace witan::arrow
