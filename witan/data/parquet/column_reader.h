// One column of a Parquet file, entry by entry: a repetition level, a definition level and, where that is the column's
// highest, a value (Dremel). A page is in memory at a time, and the dictionary of the row group.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "witan/data/parquet/metadata.h"
#include "witan/data/parquet/packed_integers.h"
#include "witan/data/parquet/schema.h"
#include "witan/data/parquet/values.h"
#include "witan/data/tables/codecs.h"

namespace witan::parquet {

// Throws tables::Damaged for bytes, tables::Unsupported for codecs and encodings that are not read, IoError. Not
// thread-safe; keeps references to file and leaf.
class ColumnReader {
 public:
  ColumnReader(const tables::RandomAccess& file, const Leaf& leaf) : file_(file), leaf_(leaf) {}

  // Starts with a row group's part of the column, at its first entry.
  void open(const ColumnChunk& chunk);

  // Whether all entries of the row group have been passed.
  bool at_end() const { return at_end_; }
  // The levels of the current entry. At the end the repetition level is 0, as at the start of a row.
  int repetition() const { return repetition_; }
  int definition() const { return definition_; }
  bool has_value() const { return !at_end_ && definition_ == leaf_.most_definition; }
  const Value& value() const { return value_; }  // valid until next()
  void next();                                   // to the next entry

  const Leaf& leaf() const { return leaf_; }
  int64_t page() const { return page_; }  // within the row group's part of the column, from 0; for messages
  uint64_t position() const { return window_ ? window_->position() : 0; }  // in the file

 private:
  void read_page();
  std::string_view page_body(const PageHeader& header);
  void open_dictionary(const PageHeader& header, std::string_view body);
  void open_data(const PageHeader& header, std::string_view body);
  void open_data_v2(const PageHeader& header, std::string_view body);
  void read_levels();

  const tables::RandomAccess& file_;
  const Leaf& leaf_;
  std::unique_ptr<tables::Window> window_;
  tables::Decompressor decompressor_;
  tables::Codec codec_ = tables::Codec::none;
  std::string dictionary_bytes_;  // outlives its page
  std::vector<Value> dictionary_;
  std::unique_ptr<ValueReader> values_;
  int64_t page_ = -1;
  int64_t left_in_chunk_ = 0;  // entries that no page was read for
  uint32_t left_in_page_ = 0;  // whose levels were not read

  static constexpr size_t kBatch = 512;
  HybridReader definitions_, repetitions_;
  std::array<uint32_t, kBatch> definition_batch_{}, repetition_batch_{};
  size_t at_ = 0, have_ = 0;  // in the batches
  int definition_ = 0, repetition_ = 0;
  Value value_;
  bool at_end_ = true;
};

// Throws if a row group's part of the column cannot be read, as far as the file's metadata tell: tables::Damaged,
// tables::Unsupported.
void check_column(const tables::RandomAccess& file, const Leaf& leaf, const ColumnChunk& chunk);

}  // namespace witan::parquet
