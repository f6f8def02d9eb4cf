// The texts of one column of a Parquet file, without a copy where the encoding allows it.
#pragma once

#include <memory>

#include "witan/data/parquet/parquet_file.h"
#include "witan/data/tables/table_reader.h"

namespace witan::parquet {

// Throws DataError for the column.
std::unique_ptr<TableReader> text_rows(std::unique_ptr<const ParquetFile> file, const TableColumns& columns);

}  // namespace witan::parquet
