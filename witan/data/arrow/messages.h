// Arrow's IPC messages: their frames in a stream or file, and the metadata in them (Schema.fbs, Message.fbs of the
// Arrow format; https://arrow.apache.org/docs/format/Columnar.html). docs/formats/arrow.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/data/arrow/flatbuffer.h"
#include "witan/data/tables/codecs.h"
#include "witan/data/tables/column_path.h"
#include "witan/data/tables/random_access.h"

namespace witan::arrow {

// How the buffers of a column lie; members of one layout have the same buffers.
enum class Layout : uint8_t {
  null,        // no buffer
  fixed,       // validity, values of a fixed number of bits
  bytes,       // validity, 32-bit offsets, bytes
  big_bytes,   // validity, 64-bit offsets, bytes
  views,       // validity, views, and any number of buffers of bytes
  list,        // validity, 32-bit offsets; one child
  big_list,    // validity, 64-bit offsets; one child
  fixed_list,  // validity; one child
  structure,   // validity; children
  list_view,   // validity, offsets, sizes; one child
  sparse_union,
  dense_union,
  run_ends
};

struct Field {
  std::string name;
  Layout layout = Layout::null;
  tables::ColumnKind kind = tables::ColumnKind::other;
  int bits = 0;           // of a value of layout fixed
  int64_t list_size = 0;  // of layout fixed_list
  std::vector<Field> children;
  // The values lie in a dictionary, and its indices, of so many bits, in the column.
  std::optional<int64_t> dictionary;
  int index_bits = 0;
  bool index_is_signed = true;
  bool wanted = false;  // whether it is read, or passed over with all below it
};

struct Buffer {
  int64_t offset = 0, bytes = 0;  // in the body
};

struct RecordBatch {
  struct Node {
    int64_t length = 0, nulls = 0;
  };
  int64_t rows = 0;
  std::vector<Node> nodes;      // of all fields, depth first
  std::vector<Buffer> buffers;  // likewise
  std::vector<int64_t> variadic;
  bool compressed = false;
  tables::Codec codec = tables::Codec::none;
};

struct Message {
  enum class Kind : uint8_t { schema, dictionary, batch, other };
  Kind kind = Kind::other;
  int version = 0;                    // 3 is V4, 4 is V5
  std::optional<Field> schema;        // a struct of the columns
  RecordBatch batch;                  // also of a dictionary
  int64_t dictionary = 0;             // its id
  bool is_delta = false;              // it adds to the dictionary of this id
  uint64_t body = 0, body_bytes = 0;  // in the file
};

// Reads messages one after the other. Throws tables::Damaged, tables::Unsupported, IoError. Keeps a reference to the
// file; not thread-safe.
class MessageReader {
 public:
  // Reads a stream, or the part of a file between its first bytes and its footer.
  explicit MessageReader(const tables::RandomAccess& file);

  // False at the end.
  bool next(Message& message);
  uint64_t position() const { return at_; }

 private:
  bool read_frame(std::string& metadata);

  const tables::RandomAccess& file_;
  uint64_t at_ = 0, end_ = 0;
};

}  // namespace witan::arrow
