#include "witan/data/corpus/open_table.h"

#include "witan/base/error.h"
#include "witan/data/arrow/arrow_reader.h"
#include "witan/data/mds/mds_reader.h"
#include "witan/data/parquet/parquet_reader.h"
#include "witan/data/tar/webdataset.h"

namespace witan {

std::unique_ptr<TableReader> open_table(const fs::path& path, SourceKind kind, const TableColumns& columns) {
  switch (kind) {
    case SourceKind::parquet:
      return open_parquet(path, columns);
    case SourceKind::arrow:
      return open_arrow(path, columns);
    case SourceKind::webdataset:
      return open_webdataset(path, columns);
    case SourceKind::mds:
      return open_mds(path, columns);
    case SourceKind::text:
    case SourceKind::jsonl:
      break;
  }
  throw DataError(cat(path.string(), ": ", name_of(kind), " is no table"));
}

}  // namespace witan
