// Opens a table of any kind that a source may have.
#pragma once

#include <memory>

#include "witan/data/corpus/sources.h"
#include "witan/data/tables/table_reader.h"

namespace witan {

// `kind` is one of is_table(). Throws what the readers of these throw.
std::unique_ptr<TableReader> open_table(const fs::path& path, SourceKind kind, const TableColumns& columns);

}  // namespace witan
