#include "witan/data/parquet/parquet_reader.h"

#include <utility>

#include "witan/data/parquet/parquet_file.h"

namespace witan {

std::unique_ptr<TableReader> open_parquet(const fs::path& path, const TableColumns& columns) {
  return read_parquet(path.string(), tables::open_file(path), columns);
}

std::unique_ptr<TableReader> read_parquet(std::string name, std::unique_ptr<tables::RandomAccess> bytes,
                                          const TableColumns& columns) {
  auto file = std::make_unique<const parquet::ParquetFile>(std::move(name), std::move(bytes));
  if (!columns.as_json()) return parquet::text_rows(std::move(file), columns);
  return parquet::json_rows(std::move(file), columns);
}

}  // namespace witan
