// What a checkpoint remembers of the files that its run is trained on.
#pragma once

#include <string>
#include <vector>

#include "witan/base/file.h"

namespace witan {

// Of the files behind prefixes (PREFIX, PREFIX.idx, PREFIX.bin, PREFIX.loss.bin, as far as they exist): their sizes and
// first bytes, 64 MiB shared by all prefixes, which the lengths of all documents are among if there are not many files;
// and of `order`, whatever else the samples depend on. 16 digits of XXH3. Throws IoError.
std::string fingerprint_of(const std::vector<fs::path>& prefixes, const std::string& order = "");

}  // namespace witan
