// Rows of a Parquet file as lines of JSON: records are assembled from the levels of their columns (Dremel).
#pragma once

#include <memory>

#include "witan/data/parquet/parquet_file.h"
#include "witan/data/tables/table_reader.h"

namespace witan::parquet {

// Throws DataError if the file has none of the columns.
std::unique_ptr<TableReader> json_rows(std::unique_ptr<const ParquetFile> file, const TableColumns& columns);

}  // namespace witan::parquet
