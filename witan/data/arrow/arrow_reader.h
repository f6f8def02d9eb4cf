// Arrow's IPC streams and files as rows, as `datasets` caches and saves them; see docs/formats/arrow.md for what is
// supported.
#pragma once

#include <memory>
#include <string>

#include "witan/base/files/file.h"
#include "witan/data/tables/random_access.h"
#include "witan/data/tables/table_reader.h"

namespace witan {

// A record batch is in memory at a time, and of it only the wanted columns. Throws DataError for a column that the file
// does not have or that is no text; CorruptionError, IoError.
std::unique_ptr<TableReader> open_arrow(const fs::path& path, const TableColumns& columns);

// Reads the same from any bytes; `name` is for messages.
std::unique_ptr<TableReader> read_arrow(std::string name, std::unique_ptr<tables::RandomAccess> bytes,
                                        const TableColumns& columns);

}  // namespace witan
