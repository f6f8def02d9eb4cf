// Reads standard input.
#pragma once

#include <cstdio>
#include <string>

namespace witan::cli {

// Everything until the end. Throws IoError, or DataError beyond 256 MiB.
std::string read_all(std::FILE* in);

}  // namespace witan::cli
