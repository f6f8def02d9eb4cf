// A row of a table as one line of JSON, of bounded length: conversations in columns become the rows that files of JSON
// Lines have (docs/formats/jsonl.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace witan::tables {

// Not thread-safe. Values follow one another inside begin_/end_ pairs; commas are written where they belong.
class JsonRow {
 public:
  explicit JsonRow(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  void clear();
  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_list() { open('['); }
  void end_list() { close(']'); }
  // The key of the value that follows. A null field is not written at all, since a column of structs has every key in
  // every row, with null for keys that a message lacks.
  void key(std::string_view name);
  // The bytes as they are, escaped where JSON asks for it: whether they are UTF-8 is the reader's question.
  void text(std::string_view value);
  void integer(int64_t value);
  void natural(uint64_t value);
  void real(double value);  // null if it is not finite, for which JSON has no number
  void boolean(bool value) { word(value ? "true" : "false"); }
  void null() { word("null"); }
  void json(std::string_view value) { word(value); }  // as it is; the reader of the line will see what it is

  // The text so far; nothing is added once it is too long.
  const std::string& line() const { return line_; }
  bool too_long() const { return too_long_; }

 private:
  void open(char bracket);
  void close(char bracket);
  void word(std::string_view letters);
  void quoted(std::string_view value);
  bool value();  // writes the comma before a value; false when the line is too long

  uint64_t most_bytes_;
  std::string line_;
  bool first_ = true;  // of its object or list, or after a key
  bool too_long_ = false;
};

}  // namespace witan::tables
