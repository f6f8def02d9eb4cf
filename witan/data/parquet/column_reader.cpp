#include "witan/data/parquet/column_reader.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "witan/data/tables/damage.h"

namespace witan::parquet {

using tables::Codec;
using tables::Damaged;
using tables::intact;
using tables::Unsupported;

namespace {

constexpr int32_t kRunLengths = 3;          // the one encoding of levels; 4, packed bits alone, is long deprecated
constexpr uint64_t kFirstHeader = 4 << 10;  // bytes that are enough for most headers
constexpr uint64_t kMostHeader = 16 << 20;  // their statistics may hold long values

int bits_of(int most) {
  return std::bit_width(static_cast<unsigned>(most));
}

// The levels at the front of a page of version 1, with their length before them.
HybridReader take_levels(std::string_view& body, int most, int32_t encoding) {
  if (most == 0) return {};
  if (encoding != kRunLengths)
    throw Unsupported{cat("levels in encoding ", encoding, " are not read; write the file again with a newer writer")};
  uint32_t length = 0;
  intact(body.size() >= sizeof length, "its levels end early");
  std::memcpy(&length, body.data(), sizeof length);
  body.remove_prefix(sizeof length);
  intact(length <= body.size(), "its levels are said to have ", length, " bytes where ", body.size(), " are left");
  const HybridReader levels(body.substr(0, length), bits_of(most));
  body.remove_prefix(length);
  return levels;
}

Codec codec_of(const ColumnChunk& chunk) {
  switch (chunk.codec) {
    case 0:
      return Codec::none;
    case 1:
      return Codec::snappy;
    case 2:
      return Codec::gzip;
    case 6:
      return Codec::zstd;
    case 7:
      return Codec::lz4_block;
    default:
      throw Unsupported{cat("pages compressed with ", codec_name(chunk.codec), " (codec ", chunk.codec,
                            ") are not read; write the file again with zstd, snappy, gzip or none")};
  }
}

}  // namespace

void check_column(const tables::RandomAccess& file, const Leaf& leaf, const ColumnChunk& chunk) {
  if (chunk.encrypted) throw Unsupported{"the column is encrypted; write the file again without"};
  if (chunk.elsewhere) throw Unsupported{"the column lies in another file; write one file again from all of them"};
  codec_of(chunk);
  intact(chunk.physical == leaf.physical, "the column has type ", static_cast<int>(chunk.physical),
         ", its schema says ", static_cast<int>(leaf.physical));
  intact(chunk.begin <= chunk.end && chunk.end <= file.size(), "it is said to lie in bytes ", chunk.begin, " to ",
         chunk.end, " of ", file.size());
}

void ColumnReader::open(const ColumnChunk& chunk) {
  check_column(file_, leaf_, chunk);
  codec_ = codec_of(chunk);
  window_ = std::make_unique<tables::Window>(file_, chunk.begin, chunk.end);
  dictionary_.clear();
  values_.reset();
  page_ = -1;
  left_in_chunk_ = chunk.values;
  left_in_page_ = 0;
  at_ = have_ = 0;
  at_end_ = false;
  next();
}

void ColumnReader::next() {
  if (++at_ >= have_) {
    while (left_in_page_ == 0) {
      if (left_in_chunk_ == 0) {
        at_end_ = true;
        repetition_ = definition_ = 0;
        return;
      }
      read_page();
    }
    read_levels();
  }
  definition_ = static_cast<int>(definition_batch_[at_]);
  repetition_ = static_cast<int>(repetition_batch_[at_]);
  intact(definition_ <= leaf_.most_definition && repetition_ <= leaf_.most_repetition,
         "a value has levels that the schema does not have");
  if (definition_ == leaf_.most_definition) value_ = values_->next();
}

void ColumnReader::read_levels() {
  have_ = std::min<size_t>(left_in_page_, kBatch);
  if (leaf_.most_definition > 0) definitions_.read(std::span(definition_batch_).first(have_));
  if (leaf_.most_repetition > 0) repetitions_.read(std::span(repetition_batch_).first(have_));
  left_in_page_ -= static_cast<uint32_t>(have_);
  at_ = 0;
}

// Reads one page of any kind.
void ColumnReader::read_page() {
  ++page_;
  intact(window_->left() > 0, "the column ends ", left_in_chunk_, " values early");
  PageHeader header;
  for (uint64_t bytes = kFirstHeader;; bytes *= 8) {
    const std::string_view seen = window_->peek(bytes);
    try {
      header = read_page_header(seen);
      break;
    } catch (const Damaged&) {  // perhaps because it goes on after the bytes
      if (seen.size() < bytes || bytes >= kMostHeader) throw;
    }
  }
  window_->skip(header.length);
  const std::string_view body = page_body(header);
  switch (header.type) {
    case PageType::dictionary:
      open_dictionary(header, body);
      break;
    case PageType::data:
    case PageType::data_v2:
      intact(header.values <= left_in_chunk_, "it has ", header.values, " values where ", left_in_chunk_, " are left");
      left_in_chunk_ -= header.values;
      left_in_page_ = header.values;
      header.type == PageType::data ? open_data(header, body) : open_data_v2(header, body);
      break;
    default:  // an index, or what a newer version of the format has: to be passed over
      break;
  }
}

// The page as stored in the file; valid until the next page.
std::string_view ColumnReader::page_body(const PageHeader& header) {
  intact(header.compressed <= window_->left(), "it is said to have ", header.compressed, " bytes where ",
         window_->left(), " are left of the column");
  const std::string_view body = window_->peek(header.compressed);
  window_->skip(header.compressed);
  if (header.crc) {
    const auto crc = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size()));
    intact(crc == *header.crc, "its checksum is not that of its bytes");
  }
  return body;
}

void ColumnReader::open_dictionary(const PageHeader& header, std::string_view body) {
  intact(page_ == 0, "a dictionary page comes after other pages");
  dictionary_bytes_ = decompressor_.run(codec_, body, header.uncompressed);
  dictionary_ = read_dictionary(header.encoding, leaf_.physical, dictionary_bytes_, header.values);
}

void ColumnReader::open_data(const PageHeader& header, std::string_view body) {
  body = decompressor_.run(codec_, body, header.uncompressed);
  repetitions_ = take_levels(body, leaf_.most_repetition, header.repetition_encoding);
  definitions_ = take_levels(body, leaf_.most_definition, header.definition_encoding);
  values_ = read_values(header.encoding, leaf_.physical, body, dictionary_);
}

void ColumnReader::open_data_v2(const PageHeader& header, std::string_view body) {
  const uint64_t levels = uint64_t{header.repetition_bytes} + header.definition_bytes;
  intact(levels <= body.size() && levels <= header.uncompressed, "its levels are said to have ", levels,
         " bytes, the page has ", body.size());
  repetitions_ = HybridReader(body.substr(0, header.repetition_bytes), bits_of(leaf_.most_repetition));
  definitions_ =
      HybridReader(body.substr(header.repetition_bytes, header.definition_bytes), bits_of(leaf_.most_definition));
  body.remove_prefix(levels);
  body = decompressor_.run(header.is_compressed ? codec_ : Codec::none, body, header.uncompressed - levels);
  values_ = read_values(header.encoding, leaf_.physical, body, dictionary_);
}

}  // namespace witan::parquet
