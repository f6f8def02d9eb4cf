// Parquet files as rows: see docs/formats/parquet.md for what is supported.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/data/parquet/column_reader.h"
#include "witan/data/parquet/metadata.h"
#include "witan/data/parquet/schema.h"
#include "witan/data/tables/random_access.h"
#include "witan/data/tables/table_reader.h"

namespace witan::parquet {

class ParquetFile {
 public:
  // `name` is for messages. Throws CorruptionError, DataError (encrypted), IoError.
  ParquetFile(std::string name, std::unique_ptr<tables::RandomAccess> bytes);

  const std::string& name() const { return name_; }
  const tables::RandomAccess& bytes() const { return *bytes_; }
  const Schema& schema() const { return schema_; }
  const std::vector<RowGroup>& row_groups() const { return metadata_.row_groups; }

  // Throws DataError if one of the leaves is compressed or encrypted in a way that is not read, in any row group:
  // before hours of work.
  void check_readable(const std::vector<int>& leaves) const;

  // "FILE: row group 2, column text, page 5"; without the page if it is negative.
  std::string place(size_t row_group, const Leaf& leaf, int64_t page) const;

 private:
  std::string name_;
  std::unique_ptr<tables::RandomAccess> bytes_;
  FileMetadata metadata_;
  Schema schema_;
};

// Rows as lines of JSON: records are assembled from the levels of their columns (Dremel). Throws DataError if the file
// has none of the columns.
std::unique_ptr<TableReader> json_rows(std::unique_ptr<const ParquetFile> file, const TableColumns& columns);

// The texts of one column, without a copy where the encoding allows it. Throws DataError if the column cannot be read.
std::unique_ptr<TableReader> text_rows(std::unique_ptr<const ParquetFile> file, const TableColumns& columns);

}  // namespace witan::parquet

namespace witan {

// Opens a file as rows. Only the wanted columns are read, page by page. Throws DataError for a column that the file
// does not have or that is no text, and for codecs that are not read; CorruptionError, IoError.
std::unique_ptr<TableReader> open_parquet(const fs::path& path, const TableColumns& columns);

// Reads the same from any bytes; `name` is for messages.
std::unique_ptr<TableReader> read_parquet(std::string name, std::unique_ptr<tables::RandomAccess> bytes,
                                          const TableColumns& columns);

}  // namespace witan
