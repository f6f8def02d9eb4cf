// WebDataset's archives as rows: files that follow one another and have the same name up to its first dot are one
// sample (https://github.com/webdataset/webdataset). docs/formats/webdataset.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "witan/base/files/file.h"
#include "witan/data/tables/table_reader.h"
#include "witan/data/text/decompress.h"

namespace witan {

// A sample's text is its file of the ending `columns.text`; or .txt, if that is "text"; or the string under that key in
// its .json. As JSON a sample is its .json; as a whole row that, with its .txt under the key
// "text". Throws CorruptionError, IoError.
std::unique_ptr<TableReader> open_webdataset(const fs::path& path, const TableColumns& columns);

// Reads the same from any bytes; `name` is for messages.
std::unique_ptr<TableReader> read_webdataset(std::string name, std::unique_ptr<ByteReader> bytes,
                                             const TableColumns& columns);

// `text` with A to Z as a to z: endings of names count the same in either case.
std::string ascii_lower_case(std::string_view text);

}  // namespace witan
