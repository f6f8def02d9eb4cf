// Shards of MosaicML's streaming data sets (MDS) as rows, plain or compressed whole with zstd or gzip
// (https://github.com/mosaicml/streaming, docs/source/preparing_datasets). docs/formats/mds.md.
#pragma once

#include <memory>
#include <string>

#include "witan/base/files/file.h"
#include "witan/data/tables/table_reader.h"
#include "witan/data/text/decompress.h"

namespace witan {

// Texts are columns of the encodings str and bytes; JSON has those of str, int and json too. Throws DataError for a
// column that the shard does not have or that is no text; CorruptionError, IoError.
std::unique_ptr<TableReader> open_mds(const fs::path& path, const TableColumns& columns);

// Reads the same from any bytes; `name` is for messages.
std::unique_ptr<TableReader> read_mds(std::string name, std::unique_ptr<ByteReader> bytes, const TableColumns& columns);

}  // namespace witan
