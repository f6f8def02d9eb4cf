#include "witan/data/parquet/parquet_file.h"

#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/tables/damage.h"

namespace witan::parquet {

using tables::intact;

ParquetFile::ParquetFile(std::string name, std::unique_ptr<tables::RandomAccess> bytes)
    : name_(std::move(name)), bytes_(std::move(bytes)) {
  tables::named(
      [&] {
        metadata_ = read_metadata(*bytes_);
        schema_ = read_schema(metadata_.schema);
        for (size_t i = 0; i < row_groups().size(); ++i)
          intact(row_groups()[i].columns.size() == schema_.leaves.size(), "row group ", i, " has ",
                 row_groups()[i].columns.size(), " columns, the schema ", schema_.leaves.size());
      },
      [&] { return name_ + ": footer"; });
}

void ParquetFile::check_readable(const std::vector<int>& leaves) const {
  for (size_t group = 0; group < row_groups().size(); ++group)
    for (const int index : leaves) {
      const Leaf& leaf = schema_.leaves[static_cast<size_t>(index)];
      const ColumnChunk& chunk = row_groups()[group].columns[static_cast<size_t>(index)];
      tables::named([&] { check_column(*bytes_, leaf, chunk); }, [&] { return place(group, leaf, -1); });
    }
}

std::string ParquetFile::place(size_t row_group, const Leaf& leaf, int64_t page) const {
  return cat(name_, ": row group ", row_group, ", column ", clipped(leaf.path), page < 0 ? "" : cat(", page ", page));
}

}  // namespace witan::parquet

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
