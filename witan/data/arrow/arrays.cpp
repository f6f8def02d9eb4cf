#include "witan/data/arrow/arrays.h"

#include <array>
#include <cstring>
#include <utility>

#include "witan/data/tables/damage.h"

namespace witan::arrow {

using tables::intact;

namespace {

constexpr int64_t kMostLength = int64_t{1} << 40;  // values of a batch: sizes in bits fit into 64

bool bit(const std::string& bits, int64_t i) {
  return static_cast<unsigned char>(bits[static_cast<size_t>(i / 8)]) >> i % 8 & 1;
}

void has_bytes(const std::string& buffer, int64_t bits, const char* what) {
  intact(static_cast<int64_t>(buffer.size()) >= (bits + 7) / 8, "its ", what, " have ", buffer.size(),
         " bytes instead of ", (bits + 7) / 8);
}

// How many buffers a field has, without those of its children and of views.
int buffers_of(const Field& field, int version) {
  if (field.dictionary) return 2;
  switch (field.layout) {
    case Layout::null:
    case Layout::run_ends:
      return 0;
    case Layout::structure:
    case Layout::fixed_list:
      return 1;
    case Layout::fixed:
    case Layout::list:
    case Layout::big_list:
    case Layout::views:
      return 2;
    case Layout::bytes:
    case Layout::big_bytes:
    case Layout::list_view:
      return 3;
    case Layout::sparse_union:
      return version < 4 ? 2 : 1;  // unions had a validity of their own up to V4
    case Layout::dense_union:
      return version < 4 ? 3 : 2;
  }
  return 0;
}

}  // namespace

template <class T>
T Array::number(const std::string& buffer, int64_t i) const {
  T value;
  std::memcpy(&value, buffer.data() + static_cast<size_t>(i) * sizeof value, sizeof value);
  return value;
}

bool Array::is_null(int64_t i) const {
  if (field_->layout == Layout::null) return true;
  return !validity_.empty() && !bit(validity_, i);
}

std::string_view Array::text(int64_t i) const {
  if (field_->layout == Layout::views) return view(i);
  const bool big = field_->layout == Layout::big_bytes;
  const int64_t begin = big ? number<int64_t>(offsets_, i) : number<int32_t>(offsets_, i);
  const int64_t end = big ? number<int64_t>(offsets_, i + 1) : number<int32_t>(offsets_, i + 1);
  intact(begin >= 0 && begin <= end && static_cast<uint64_t>(end) <= values_.size(), "a text lies in bytes ", begin,
         " to ", end, " of ", values_.size());
  return std::string_view(values_).substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// 16 bytes: the length, and up to 12 bytes of text, or its first 4, a buffer and an offset.
std::string_view Array::view(int64_t i) const {
  constexpr int64_t kInline = 12;
  const std::string_view here = std::string_view(values_).substr(static_cast<size_t>(i) * 16, 16);
  std::array<int32_t, 4> words;
  std::memcpy(words.data(), here.data(), sizeof words);
  const int64_t length = words[0];
  intact(length >= 0, "a text of ", length, " bytes");
  if (length <= kInline) return here.substr(4, static_cast<size_t>(length));
  intact(words[2] >= 0 && static_cast<size_t>(words[2]) < blocks_.size() && words[3] >= 0, "a text lies in buffer ",
         words[2], " of ", blocks_.size());
  const std::string_view block = blocks_[static_cast<size_t>(words[2])];
  const auto begin = static_cast<size_t>(words[3]);
  intact(begin <= block.size() && static_cast<size_t>(length) <= block.size() - begin, "a text lies in bytes ", begin,
         " to ", begin + static_cast<size_t>(length), " of ", block.size());
  return block.substr(begin, static_cast<size_t>(length));
}

int64_t Array::integer(int64_t i) const {
  switch (field_->bits) {
    case 8:
      return number<int8_t>(values_, i);
    case 16:
      return number<int16_t>(values_, i);
    case 32:
      return number<int32_t>(values_, i);
    default:
      return number<int64_t>(values_, i);
  }
}

uint64_t Array::natural(int64_t i) const {
  switch (field_->bits) {
    case 8:
      return number<uint8_t>(values_, i);
    case 16:
      return number<uint16_t>(values_, i);
    case 32:
      return number<uint32_t>(values_, i);
    default:
      return number<uint64_t>(values_, i);
  }
}

double Array::real(int64_t i) const {
  return field_->bits == 32 ? number<float>(values_, i) : number<double>(values_, i);
}

bool Array::boolean(int64_t i) const {
  return bit(values_, i);
}

Array::Range Array::items(int64_t i) const {
  Range range;
  if (field_->layout == Layout::fixed_list)
    range = {i * field_->list_size, (i + 1) * field_->list_size};
  else if (field_->layout == Layout::big_list)
    range = {number<int64_t>(offsets_, i), number<int64_t>(offsets_, i + 1)};
  else
    range = {number<int32_t>(offsets_, i), number<int32_t>(offsets_, i + 1)};
  intact(range.begin >= 0 && range.begin <= range.end && range.end <= children_[0].length(), "a list has the items ",
         range.begin, " to ", range.end, " of ", children_[0].length());
  return range;
}

int64_t Array::index(int64_t i) const {
  const bool sign = field_->index_is_signed;
  int64_t index = 0;
  switch (field_->index_bits) {
    case 8:
      index = sign ? number<int8_t>(values_, i) : number<uint8_t>(values_, i);
      break;
    case 16:
      index = sign ? number<int16_t>(values_, i) : number<uint16_t>(values_, i);
      break;
    case 32:
      index = sign ? number<int32_t>(values_, i) : int64_t{number<uint32_t>(values_, i)};
      break;
    default:
      index = number<int64_t>(values_, i);
  }
  intact(index >= 0 && index < dictionary_->length(), "it points to entry ", index, " of a dictionary of ",
         dictionary_->length());
  return index;
}

Array BatchReader::read(const Message& message, const Field& root, const Dictionaries& dictionaries) {
  message_ = &message;
  dictionaries_ = &dictionaries;
  node_ = buffer_ = variadic_ = 0;
  loaded_ = 0;
  Array columns;
  columns.field_ = &root;
  columns.length_ = message.batch.rows;
  for (const Field& field : root.children) {
    columns.children_.push_back(read_field(field, false));
    intact(columns.children_.back().length() == columns.length_, "a column has ", columns.children_.back().length(),
           " rows, the batch ", columns.length_);
  }
  return columns;
}

Array BatchReader::read_dictionary(const Message& message, const Field& field) {
  message_ = &message;
  node_ = buffer_ = variadic_ = 0;
  loaded_ = 0;
  return read_field(field, true);
}

const Buffer& BatchReader::next_buffer() {
  const RecordBatch& batch = message_->batch;
  intact(buffer_ < batch.buffers.size(), "it has ", batch.buffers.size(), " buffers, fewer than its columns need");
  return batch.buffers[buffer_++];
}

// The bytes of a buffer. Compressed ones begin with their size, or -1 for what did not become smaller.
std::string BatchReader::load(const Buffer& buffer) {
  intact(buffer.offset >= 0 && buffer.bytes >= 0 && static_cast<uint64_t>(buffer.offset) <= message_->body_bytes &&
             static_cast<uint64_t>(buffer.bytes) <= message_->body_bytes - static_cast<uint64_t>(buffer.offset),
         "a buffer lies in bytes ", buffer.offset, " and ", buffer.bytes, " more of ", message_->body_bytes);
  loaded_ += static_cast<uint64_t>(buffer.bytes);
  intact(loaded_ <= message_->body_bytes, "its buffers overlap");
  std::string bytes(static_cast<size_t>(buffer.bytes), '\0');
  file_.read(message_->body + static_cast<uint64_t>(buffer.offset), bytes);
  if (!message_->batch.compressed || bytes.empty()) return bytes;
  int64_t size = 0;
  intact(bytes.size() >= sizeof size, "a compressed buffer has ", bytes.size(), " bytes");
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size == -1) return bytes.erase(0, sizeof size);
  intact(size >= 0, "a buffer of ", size, " bytes");
  const auto block = std::string_view(bytes).substr(sizeof size);
  return std::string(decompressor_.run(message_->batch.codec, block, static_cast<uint64_t>(size)));
}

std::string BatchReader::load_next(bool wanted) {
  const Buffer& buffer = next_buffer();
  return wanted ? load(buffer) : std::string();
}

Array BatchReader::read_field(const Field& field, bool is_dictionary) {
  const RecordBatch& batch = message_->batch;
  intact(node_ < batch.nodes.size(), "it has ", batch.nodes.size(), " columns, fewer than its schema");
  const RecordBatch::Node& node = batch.nodes[node_++];
  intact(node.length >= 0 && node.length <= kMostLength, "a column of ", node.length, " values");
  Array array;
  array.field_ = &field;
  array.length_ = node.length;
  if (field.dictionary && !is_dictionary) {
    array.validity_ = load_next(field.wanted && node.nulls != 0);
    array.values_ = load_next(field.wanted);
    if (!field.wanted) return array;
    const auto found = dictionaries_->find(*field.dictionary);
    intact(found != dictionaries_->end(), "its dictionary ", *field.dictionary, " is missing");
    array.dictionary_ = found->second;
    has_bytes(array.values_, array.length_ * field.index_bits, "indices");
  } else if (!field.wanted) {
    Field plain = field;
    plain.dictionary.reset();
    for (int i = buffers_of(plain, message_->version); i > 0; --i) next_buffer();
    if (field.layout == Layout::views) read_views(array, false);
    read_children(array);
  } else {
    if (field.layout != Layout::null) array.validity_ = load_next(node.nulls != 0);
    read_values(array);
    read_children(array);
  }
  if (!array.validity_.empty()) has_bytes(array.validity_, array.length_, "nulls");
  return array;
}

void BatchReader::read_values(Array& array) {
  const Field& field = *array.field_;
  const int64_t length = array.length_;
  const bool big = field.layout == Layout::big_bytes || field.layout == Layout::big_list;
  const bool has_bytes_behind = field.layout == Layout::bytes || field.layout == Layout::big_bytes;
  if (has_bytes_behind || field.layout == Layout::list || field.layout == Layout::big_list) {
    array.offsets_ = load_next(true);
    if (length > 0) has_bytes(array.offsets_, (length + 1) * (big ? 64 : 32), "offsets");
  }
  if (has_bytes_behind || field.layout == Layout::fixed) array.values_ = load_next(true);
  if (field.layout == Layout::fixed) has_bytes(array.values_, length * field.bits, "values");
  if (field.layout == Layout::views) {
    array.values_ = load_next(true);
    has_bytes(array.values_, length * 128, "views");
    read_views(array, true);
  }
}

void BatchReader::read_views(Array& array, bool wanted) {
  const RecordBatch& batch = message_->batch;
  intact(variadic_ < batch.variadic.size(), "a column of views does not say how many buffers it has");
  for (int64_t left = batch.variadic[variadic_++]; left > 0; --left) {
    std::string block = load_next(wanted);
    if (wanted) array.blocks_.push_back(std::move(block));
  }
}

void BatchReader::read_children(Array& array) {
  const Field& field = *array.field_;
  for (const Field& child : field.children) array.children_.push_back(read_field(child, false));
  if (!field.wanted) return;
  for (const Array& child : array.children_)
    if (field.layout == Layout::structure && child.field_->wanted)
      intact(child.length_ >= array.length_, "a field of a struct has ", child.length_, " values, the struct ",
             array.length_);
}

}  // namespace witan::arrow
