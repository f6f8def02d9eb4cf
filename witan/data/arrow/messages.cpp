#include "witan/data/arrow/messages.h"

#include <array>
#include <cstring>
#include <utility>

#include "witan/base/text.h"
#include "witan/data/tables/damage.h"

namespace witan::arrow {

using tables::Codec;
using tables::ColumnKind;
using tables::intact;
using tables::Unsupported;

namespace {

constexpr std::string_view kMagic = "ARROW1", kFeatherMagic = "FEA1";
constexpr int kMostNesting = 64;

// Numbers of the union Type.
enum : uint8_t {
  kNull = 1,
  kInt,
  kFloatingPoint,
  kBinary,
  kUtf8,
  kBool,
  kDecimal,
  kDate,
  kTime,
  kTimestamp,
  kInterval,
  kList,
  kStruct,
  kUnion,
  kFixedSizeBinary,
  kFixedSizeList,
  kMap,
  kDuration,
  kLargeBinary,
  kLargeUtf8,
  kLargeList,
  kRunEndEncoded,
  kBinaryView,
  kUtf8View,
  kListView,
  kLargeListView
};

void set_integer(Field& field, const FlatTable& type) {
  field.bits = type.number<int32_t>(0, 0);
  intact(field.bits == 8 || field.bits == 16 || field.bits == 32 || field.bits == 64, "integers of ", field.bits,
         " bits");
  field.kind = type.number<uint8_t>(1, 0) != 0 ? ColumnKind::integer : ColumnKind::natural;
}

void set_real(Field& field, const FlatTable& type) {
  const auto precision = type.number<int16_t>(0, 0);
  intact(precision >= 0 && precision <= 2, "real numbers of precision ", precision);
  field.bits = 16 << precision;
  field.kind = precision == 0 ? ColumnKind::other : ColumnKind::real;  // half floats are no numbers of messages
}

struct Known {
  Layout layout;
  ColumnKind kind;
};

// The types whose members do not matter here.
Known known_type(uint8_t type) {
  switch (type) {
    case kNull:
      return {Layout::null, ColumnKind::null};
    case kUtf8:
    case kBinary:  // which older writers used for text
      return {Layout::bytes, ColumnKind::text};
    case kLargeUtf8:
    case kLargeBinary:
      return {Layout::big_bytes, ColumnKind::text};
    case kUtf8View:
    case kBinaryView:
      return {Layout::views, ColumnKind::text};
    case kBool:
      return {Layout::fixed, ColumnKind::boolean};
    case kStruct:
      return {Layout::structure, ColumnKind::structure};
    case kList:
      return {Layout::list, ColumnKind::list};
    case kLargeList:
      return {Layout::big_list, ColumnKind::list};
    case kMap:
      return {Layout::list, ColumnKind::other};
    case kRunEndEncoded:
      return {Layout::run_ends, ColumnKind::other};
    case kListView:
    case kLargeListView:
      return {Layout::list_view, ColumnKind::other};
    case kDecimal:
    case kDate:
    case kTime:
    case kTimestamp:
    case kInterval:
    case kFixedSizeBinary:
    case kDuration:
      return {Layout::fixed, ColumnKind::other};
    default:
      throw Unsupported{cat("columns of type ", int{type}, " are not known; write the file again without them")};
  }
}

void set_type(Field& field, uint8_t type, const FlatTable& description) {
  switch (type) {
    case kInt:
      field.layout = Layout::fixed;
      return set_integer(field, description);
    case kFloatingPoint:
      field.layout = Layout::fixed;
      return set_real(field, description);
    case kUnion:
      field.layout = description.number<int16_t>(0, 0) == 0 ? Layout::sparse_union : Layout::dense_union;
      return;
    case kFixedSizeList:
      field.layout = Layout::fixed_list;
      field.kind = ColumnKind::list;
      field.list_size = description.number<int32_t>(0, 0);
      intact(field.list_size >= 0, "lists of ", field.list_size, " items");
      return;
    default: {
      const Known known = known_type(type);
      field.layout = known.layout;
      field.kind = known.kind;
      if (type == kBool) field.bits = 1;
    }
  }
}

void set_dictionary(Field& field, const FlatTable& encoding) {
  field.dictionary = encoding.number<int64_t>(0, 0);
  field.index_bits = 32;
  if (const auto index = encoding.table(1)) {
    field.index_bits = index->number<int32_t>(0, 0);
    field.index_is_signed = index->number<uint8_t>(1, 0) != 0;
  }
  intact(field.index_bits == 8 || field.index_bits == 16 || field.index_bits == 32 || field.index_bits == 64,
         "dictionary indices of ", field.index_bits, " bits");
  // Dictionaries of lists and structs are left out: texts are not written that way.
  if (field.kind == ColumnKind::list || field.kind == ColumnKind::structure) field.kind = ColumnKind::other;
}

// `left`: fields that the bytes can still hold; shared tables could make trees without end.
Field read_field(const FlatTable& in, int depth, uint64_t& left) {
  intact(depth <= kMostNesting && left > 0, "the schema is nested deeper than ", kMostNesting,
         ", or has more fields than bytes");
  --left;
  Field field;
  field.name = in.text(0);
  const auto type = in.table(3);
  intact(type.has_value(), "the column ", clipped(field.name), " has no type");
  set_type(field, in.number<uint8_t>(2, 0), *type);
  const FlatVector children = in.vector(5, 4);
  for (uint32_t i = 0; i < children.size(); ++i)
    field.children.push_back(read_field(children.table(i), depth + 1, left));
  intact(field.kind != ColumnKind::list || field.children.size() == 1, "the list ", clipped(field.name), " has ",
         field.children.size(), " children");
  if (const auto encoding = in.table(4)) set_dictionary(field, *encoding);
  return field;
}

Field read_schema(const FlatTable& in, size_t bytes) {
  constexpr uint64_t kLeastFieldBytes = 16;
  if (in.number<int16_t>(0, 0) != 0) throw Unsupported{"its numbers are big-endian; write it again on another machine"};
  Field root;
  root.layout = Layout::structure;
  root.kind = ColumnKind::structure;
  uint64_t left = bytes / kLeastFieldBytes;
  const FlatVector fields = in.vector(1, 4);
  for (uint32_t i = 0; i < fields.size(); ++i) root.children.push_back(read_field(fields.table(i), 1, left));
  return root;
}

RecordBatch read_batch(const FlatTable& in) {
  RecordBatch batch;
  batch.rows = in.number<int64_t>(0, 0);
  intact(batch.rows >= 0, "it has ", batch.rows, " rows");
  const FlatVector nodes = in.vector(1, 16), buffers = in.vector(2, 16), variadic = in.vector(4, 8);
  for (uint32_t i = 0; i < nodes.size(); ++i)
    batch.nodes.push_back({nodes.number<int64_t>(i), nodes.number<int64_t>(i, 8)});
  for (uint32_t i = 0; i < buffers.size(); ++i)
    batch.buffers.push_back({buffers.number<int64_t>(i), buffers.number<int64_t>(i, 8)});
  for (uint32_t i = 0; i < variadic.size(); ++i) batch.variadic.push_back(variadic.number<int64_t>(i));
  if (const auto compression = in.table(3)) {
    const auto codec = compression->number<int8_t>(0, 0);
    if (codec != 0 && codec != 1)
      throw Unsupported{cat("buffers compressed with codec ", int{codec}, " are not read; write it again with zstd")};
    batch.compressed = true;
    batch.codec = codec == 0 ? Codec::lz4_frame : Codec::zstd;
  }
  return batch;
}

void read_message(std::string_view metadata, Message& message) {
  const FlatTable in = FlatTable::root(metadata);
  message.version = in.number<int16_t>(0, 0);
  intact(message.version <= 4, "it has metadata of version ", message.version + 1, ", later than 5");
  const int64_t body = in.number<int64_t>(3, 0);
  intact(body >= 0, "a message has a body of ", body, " bytes");
  message.body_bytes = static_cast<uint64_t>(body);
  const auto header = in.table(2);
  const auto kind = in.number<uint8_t>(1, 0);
  intact(header.has_value() && kind != 0, "a message has no header");
  if (kind == 1) {
    message.kind = Message::Kind::schema;
    message.schema = read_schema(*header, metadata.size());
  } else if (kind == 2) {
    message.kind = Message::Kind::dictionary;
    message.dictionary = header->number<int64_t>(0, 0);
    message.is_delta = header->number<uint8_t>(2, 0) != 0;
    const auto values = header->table(1);
    intact(values.has_value(), "a dictionary has no values");
    message.batch = read_batch(*values);
  } else if (kind == 3) {
    message.kind = Message::Kind::batch;
    message.batch = read_batch(*header);
  }
}

}  // namespace

MessageReader::MessageReader(const tables::RandomAccess& file) : file_(file), end_(file.size()) {
  constexpr uint64_t kFront = 8, kTail = 4 + kMagic.size();  // the magic and padding; the footer's size and the magic
  std::string head(std::min<uint64_t>(kFront, end_), '\0');
  file.read(0, head);
  if (head.starts_with(kFeatherMagic)) throw Unsupported{"this is Feather of version 1; write it again as version 2"};
  if (!head.starts_with(kMagic)) return;
  intact(end_ >= kFront + kTail, "it has ", end_, " bytes, too few for an Arrow file");
  std::string tail(kTail, '\0');
  file.read(end_ - kTail, tail);
  uint32_t footer = 0;
  std::memcpy(&footer, tail.data(), sizeof footer);
  intact(tail.ends_with(kMagic) && footer <= end_ - kFront - kTail,
         "it does not end with a footer and ARROW1, as Arrow files do: the end is missing");
  at_ = kFront;
  end_ -= kTail + footer;
}

// The metadata of the next message; false at the end: an end marker or the last byte.
bool MessageReader::read_frame(std::string& metadata) {
  constexpr uint32_t kContinuation = 0xFFFFFFFF;
  const auto take = [&](const char* what) {
    uint32_t number = 0;
    intact(end_ - at_ >= sizeof number, "it ends early, within ", what);
    std::array<char, sizeof number> bytes{};
    file_.read(at_, bytes);
    std::memcpy(&number, bytes.data(), sizeof number);
    at_ += sizeof number;
    return number;
  };
  if (at_ == end_) return false;
  uint32_t length = take("the size of a message");
  if (length == kContinuation) length = take("the size of a message");  // before version 0.15 there was none
  if (length == 0) {
    at_ = end_;
    return false;
  }
  intact(length <= end_ - at_, "a message is said to have metadata of ", length, " bytes where ", end_ - at_,
         " are left: it is no Arrow file, or its end is missing");
  metadata.resize(length);
  file_.read(at_, metadata);
  at_ += length;
  return true;
}

bool MessageReader::next(Message& message) {
  message = {};
  std::string metadata;
  if (!read_frame(metadata)) return false;
  read_message(metadata, message);
  message.body = at_;
  intact(message.body_bytes <= end_ - at_, "a message is said to have a body of ", message.body_bytes, " bytes where ",
         end_ - at_, " are left: its end is missing");
  at_ += message.body_bytes;
  return true;
}

}  // namespace witan::arrow
