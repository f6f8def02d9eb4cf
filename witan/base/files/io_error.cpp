#include "witan/base/files/io_error.h"

#include <cerrno>
#include <cstring>

#include "witan/base/error.h"

namespace witan {

void throw_io_error(std::string_view what, const std::filesystem::path& path, int error) {
  if (error == ENOSPC || error == EDQUOT)
    throw DiskFullError(
        cat(what, " ", path.string(), ": the disk is full; free some space and run the same command again"));
  throw IoError(cat(what, " ", path.string(), ": ", std::strerror(error)));
}

}  // namespace witan
