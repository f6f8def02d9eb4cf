// Parquet files as rows: docs/formats/parquet.md says what is read and what is not.
#pragma once

#include <memory>
#include <string>

#include "witan/base/files/file.h"
#include "witan/data/tables/random_access.h"
#include "witan/data/tables/table_reader.h"

namespace witan {

// Only the wanted columns are read, page by page. Throws DataError for a column that the file does not have or that is
// no text, and for codecs that are not read; CorruptionError, IoError.
std::unique_ptr<TableReader> open_parquet(const fs::path& path, const TableColumns& columns);

// The same of any bytes; `name` is for messages.
std::unique_ptr<TableReader> read_parquet(std::string name, std::unique_ptr<tables::RandomAccess> bytes,
                                          const TableColumns& columns);

}  // namespace witan
