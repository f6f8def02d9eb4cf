#include "witan/data/parquet/metadata.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "witan/data/parquet/thrift.h"
#include "witan/data/tables/damage.h"

namespace witan::parquet {

using tables::intact;
using tables::Unsupported;

namespace {

using WireType = ThriftReader::Type;
using Field = ThriftReader::Field;

constexpr std::string_view kMagic = "PAR1", kEncryptedMagic = "PARE";
constexpr uint64_t kTailBytes = 8;  // the metadata's length, and the magic

// ConvertedType, the older way to say what values mean.
Meaning meaning_of_converted(int32_t type) {
  switch (type) {
    case 0:   // UTF8
    case 4:   // ENUM
    case 19:  // JSON
      return Meaning::text;
    case 1:  // MAP
    case 2:  // MAP_KEY_VALUE
      return Meaning::map;
    case 3:
      return Meaning::list;
    case 11:  // UINT_8 to UINT_64
    case 12:
    case 13:
    case 14:
      return Meaning::natural;
    case 15:  // INT_8 to INT_64
    case 16:
    case 17:
    case 18:
      return Meaning::plain;
    default:
      return Meaning::something;
  }
}

// LogicalType is a union of structs: the field id selects one.
Meaning meaning_of_logical(ThriftReader& in) {
  Meaning meaning = Meaning::something;
  in.fields([&](const Field& field) {
    const int id = field.id;
    if (id == 1 || id == 4 || id == 12) meaning = Meaning::text;
    if (id == 2) meaning = Meaning::map;
    if (id == 3) meaning = Meaning::list;
    if (id == 11) meaning = Meaning::nothing;
    if (id != 10) return in.skip(field);
    meaning = Meaning::plain;  // an integer
    in.structure(field, [&](const Field& part) {
      if (part.id != 2) return in.skip(part);
      if (!in.boolean(part)) meaning = Meaning::natural;
    });
  });
  return meaning;
}

SchemaElement read_schema_element(ThriftReader& in) {
  SchemaElement element;
  std::optional<Meaning> logical;
  in.fields([&](const Field& field) {
    switch (field.id) {
      case 1: {
        const int32_t physical = in.integer32(field);
        intact(physical >= 0 && physical <= 7, "there is no physical type ", physical);
        element.physical = static_cast<Physical>(physical);
        return;
      }
      case 3: {
        const int32_t repetition = in.integer32(field);
        intact(repetition >= 0 && repetition <= 2, "there is no repetition ", repetition);
        element.repetition = static_cast<Repetition>(repetition);
        return;
      }
      case 4:
        element.name = in.text(field);
        return;
      case 5:
        element.children = in.integer32(field);
        return;
      case 6:
        element.meaning = meaning_of_converted(in.integer32(field));
        return;
      case 10:
        intact(field.type == WireType::structure, "a logical type is no struct");
        logical = meaning_of_logical(in);
        return;
      default:
        in.skip(field);
    }
  });
  if (logical) element.meaning = *logical;
  return element;
}

void read_column_metadata(ThriftReader& in, const Field& whole, ColumnChunk& chunk) {
  int64_t bytes = 0, data = 0, dictionary = 0;
  in.structure(whole, [&](const Field& field) {
    switch (field.id) {
      case 1:
        chunk.physical = static_cast<Physical>(in.integer32(field));
        return;
      case 4:
        chunk.codec = in.integer32(field);
        return;
      case 5:
        chunk.values = in.integer(field);
        return;
      case 7:
        bytes = in.integer(field);
        return;
      case 9:
        data = in.integer(field);
        return;
      case 11:
        dictionary = in.integer(field);
        return;
      default:
        in.skip(field);
    }
  });
  // Some writers say 0 for no dictionary.
  const int64_t begin = dictionary > 0 && dictionary < data ? dictionary : data;
  intact(begin >= 0 && bytes >= 0 && chunk.values >= 0, "a column's place or size is negative");
  chunk.begin = static_cast<uint64_t>(begin);
  chunk.end = chunk.begin + static_cast<uint64_t>(bytes);
}

ColumnChunk read_column_chunk(ThriftReader& in) {
  ColumnChunk chunk;
  bool described = false;
  in.fields([&](const Field& field) {
    switch (field.id) {
      case 1:
        chunk.elsewhere = !in.text(field).empty();
        return;
      case 3:
        described = true;
        return read_column_metadata(in, field, chunk);
      case 8:
        chunk.encrypted = true;
        return in.skip(field);
      default:
        in.skip(field);
    }
  });
  intact(described || chunk.encrypted, "a column has no metadata");
  return chunk;
}

RowGroup read_row_group(ThriftReader& in) {
  RowGroup group;
  in.fields([&](const Field& field) {
    if (field.id == 1)
      in.list(field, WireType::structure, [&] { group.columns.push_back(read_column_chunk(in)); });
    else if (field.id == 3)
      group.rows = in.integer(field);
    else
      in.skip(field);
  });
  intact(group.rows >= 0, "a row group has ", group.rows, " rows");
  return group;
}

void read_data_page(ThriftReader& in, const Field& whole, PageHeader& header, int64_t& values) {
  in.structure(whole, [&](const Field& field) {
    if (field.id == 1)
      values = in.integer(field);
    else if (field.id == 2)
      header.encoding = in.integer32(field);
    else if (field.id == 3)
      header.definition_encoding = in.integer32(field);
    else if (field.id == 4)
      header.repetition_encoding = in.integer32(field);
    else
      in.skip(field);
  });
}

void read_dictionary_page(ThriftReader& in, const Field& whole, PageHeader& header, int64_t& values) {
  in.structure(whole, [&](const Field& field) {
    if (field.id == 1)
      values = in.integer(field);
    else if (field.id == 2)
      header.encoding = in.integer32(field);
    else
      in.skip(field);
  });
}

uint32_t size_of(int64_t size) {
  intact(size >= 0 && size <= 0x7FFFFFFF, "a page's header has the size ", size);
  return static_cast<uint32_t>(size);
}

void read_data_page_v2(ThriftReader& in, const Field& whole, PageHeader& header, int64_t& values) {
  in.structure(whole, [&](const Field& field) {
    if (field.id == 1)
      values = in.integer(field);
    else if (field.id == 4)
      header.encoding = in.integer32(field);
    else if (field.id == 5)
      header.definition_bytes = size_of(in.integer(field));
    else if (field.id == 6)
      header.repetition_bytes = size_of(in.integer(field));
    else if (field.id == 7)
      header.is_compressed = in.boolean(field);
    else
      in.skip(field);
  });
}

PageHeader read_page(ThriftReader& in) {
  PageHeader header;
  int64_t values = 0, compressed = -1, uncompressed = -1;
  std::optional<int32_t> type;
  in.fields([&](const Field& field) {
    switch (field.id) {
      case 1:
        type = in.integer32(field);
        return;
      case 2:
        uncompressed = in.integer(field);
        return;
      case 3:
        compressed = in.integer(field);
        return;
      case 4:
        header.crc = static_cast<uint32_t>(in.integer32(field));
        return;
      case 5:
        return read_data_page(in, field, header, values);
      case 7:
        return read_dictionary_page(in, field, header, values);
      case 8:
        return read_data_page_v2(in, field, header, values);
      default:
        in.skip(field);
    }
  });
  intact(type.has_value(), "a page's header has no type");
  header.type = static_cast<PageType>(*type);
  header.compressed = size_of(compressed);
  header.uncompressed = size_of(uncompressed);
  header.values = size_of(values);
  return header;
}

}  // namespace

FileMetadata read_metadata(const tables::RandomAccess& file) {
  const uint64_t size = file.size();
  intact(size >= kMagic.size() + kTailBytes, "it has ", size, " bytes, too few for a Parquet file");
  std::string tail(kTailBytes, '\0');
  file.read(size - kTailBytes, tail);
  const std::string_view magic = std::string_view(tail).substr(4);
  if (magic == kEncryptedMagic) throw Unsupported{"the file is encrypted; write it again without"};
  intact(magic == kMagic,
         "it does not end with PAR1, as Parquet files do: the end is missing, or it is another format");
  uint32_t length = 0;
  std::memcpy(&length, tail.data(), sizeof length);
  intact(length <= size - kTailBytes - kMagic.size(), "its metadata are said to have ", length, " bytes, the file has ",
         size);
  FileMetadata metadata;
  metadata.footer = size - kTailBytes - length;
  std::string bytes(length, '\0');
  file.read(metadata.footer, bytes);
  ThriftReader in(bytes);
  in.fields([&](const Field& field) {
    if (field.id == 2)
      in.list(field, WireType::structure, [&] { metadata.schema.push_back(read_schema_element(in)); });
    else if (field.id == 4)
      in.list(field, WireType::structure, [&] { metadata.row_groups.push_back(read_row_group(in)); });
    else if (field.id == 8)
      throw Unsupported{"the file is encrypted; write it again without"};
    else
      in.skip(field);
  });
  return metadata;
}

PageHeader read_page_header(std::string_view bytes) {
  ThriftReader in(bytes);
  PageHeader header = read_page(in);
  header.length = in.position();
  return header;
}

const char* codec_name(int32_t codec) {
  static constexpr const char* kNames[] = {"uncompressed", "snappy", "gzip", "LZO", "brotli", "LZ4", "zstd", "LZ4_RAW"};
  return codec >= 0 && codec < 8 ? kNames[codec] : "unknown";
}

}  // namespace witan::parquet
