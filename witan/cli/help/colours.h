// Colours of help and messages on terminals.
#pragma once

#include <string>

namespace witan::cli {

// A help page with its headings and flags set off by control sequences; where `colour` is false, as it is.
std::string coloured_help(const std::string& help, bool colour);

}  // namespace witan::cli
