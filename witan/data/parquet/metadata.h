// The footer of a Parquet file and the headers of its pages: what parquet.thrift of the Parquet project declares, as
// far as reading columns needs it. docs/formats/parquet.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/data/tables/random_access.h"

namespace witan::parquet {

// The numbers are the format's.
enum class Physical : int32_t {
  boolean = 0,
  int32 = 1,
  int64 = 2,
  int96 = 3,
  float32 = 4,
  float64 = 5,
  byte_array = 6,
  fixed_bytes = 7
};
enum class Repetition : int32_t { required = 0, optional = 1, repeated = 2 };
enum class PageType : int32_t { data = 0, index = 1, dictionary = 2, data_v2 = 3 };

// The meaning of a column's values, as far as it matters for reading them.
enum class Meaning : uint8_t {
  plain,     // given by the physical type
  text,      // UTF-8, JSON or an enumeration
  natural,   // an integer without sign
  list,      // of a group
  map,       // of a group
  nothing,   // all are null
  something  // dates, decimals, half floats, BSON ...: neither text nor a plain number
};

struct SchemaElement {
  std::string name;
  std::optional<Physical> physical;  // of leaves
  Repetition repetition = Repetition::required;
  int32_t children = 0;
  Meaning meaning = Meaning::plain;
};

struct ColumnChunk {
  Physical physical = Physical::boolean;
  int32_t codec = 0;  // the format's number; codec_name()
  int64_t values = 0;
  uint64_t begin = 0, end = 0;  // of its pages in the file
  bool elsewhere = false;       // in another file
  bool encrypted = false;
};

struct RowGroup {
  int64_t rows = 0;
  std::vector<ColumnChunk> columns;  // one per leaf, in the order of the schema
};

struct FileMetadata {
  std::vector<SchemaElement> schema;  // depth first, the root before all
  std::vector<RowGroup> row_groups;
  uint64_t footer = 0;  // where the metadata begins: pages end before it
};

struct PageHeader {
  PageType type = PageType::data;
  uint64_t length = 0;                        // of the header itself
  uint32_t compressed = 0, uncompressed = 0;  // bytes of the page after it
  std::optional<uint32_t> crc;                // of the page's bytes as they stand in the file
  uint32_t values = 0;                        // nulls included
  int32_t encoding = 0;                       // the format's number
  // Data pages of version 1:
  int32_t definition_encoding = 0, repetition_encoding = 0;
  // Data pages of version 2, whose levels are not compressed:
  uint32_t definition_bytes = 0, repetition_bytes = 0;
  bool is_compressed = true;
};

// Throws tables::Damaged and tables::Unsupported (an encrypted file), IoError.
FileMetadata read_metadata(const tables::RandomAccess& file);

// Reads the header at the front of `bytes`. Throws tables::Damaged, also if `bytes` ends within it.
PageHeader read_page_header(std::string_view bytes);

const char* codec_name(int32_t codec);

}  // namespace witan::parquet
