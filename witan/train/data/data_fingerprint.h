// What a checkpoint remembers of the files that its run is trained on.
#pragma once

#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

// Of the files behind prefixes (PREFIX, PREFIX.idx, PREFIX.bin, PREFIX.loss.bin, as far as they exist): their sizes and
// first bytes, 64 MiB shared by all prefixes, which the lengths of all documents are among if there are not many files;
// and of `order`, whatever else the samples depend on. 16 digits of XXH3. Throws IoError.
std::string fingerprint_of(const std::vector<fs::path>& prefixes, const std::string& order = "");

// Of the files behind each prefix one that was written after `then`, the tokens first; of `most` prefixes at most.
// Where a fingerprint differs, these are likely why. A file that was copied with its time is not among them.
std::vector<fs::path> files_written_after(const std::vector<fs::path>& prefixes, fs::file_time_type then, size_t most);

}  // namespace witan
