// The fingerprint of training data, which checkpoints store so that a run does not resume on other data.
#pragma once

#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/data/datasets/column.h"

namespace witan {

// 16 digits of XXH3 over the files of the prefixes (PREFIX, PREFIX.idx, PREFIX.bin, PREFIX.loss.bin, if they exist) and
// `order`, which stands for all else that the samples depend on. Each file contributes its size and first bytes. All
// prefixes share 64 MiB, which include the lengths of all documents if there are few files. Throws IoError.
std::string fingerprint_of(const std::vector<fs::path>& prefixes, const std::string& order = "");

// The fingerprint of a run whose objective reads these columns beside the tokens: `tokens`, the fingerprint above, if
// there are none; else its hash with the names of the columns and the files that the prefixes have of them, which share
// 64 MiB too. Throws IoError.
std::string fingerprint_with_columns(const std::string& tokens, const std::vector<fs::path>& prefixes,
                                     const std::vector<ColumnSpec>& columns);

// For at most `most` prefixes, a file of tokens or columns that was written after `then`, tokens first: the likely
// reason why a fingerprint differs. A file that was copied with its time of change is not found.
std::vector<fs::path> files_written_after(const std::vector<fs::path>& prefixes, fs::file_time_type then, size_t most,
                                          const std::vector<ColumnSpec>& columns = {});

}  // namespace witan
