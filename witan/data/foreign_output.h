// Files that lie where a command is to write, and that it has not made.
#pragma once

#include <string>

#include "witan/base/file.h"

namespace witan {

// Throws ConfigError, with the way out, if there is something at `path`. `option`: the flag that names the output.
void refuse_existing(const fs::path& path, const std::string& option = "--output");

}  // namespace witan
