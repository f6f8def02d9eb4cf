// The manual page, witan(1), in the macros of man(7).
#pragma once

#include <string>

#include "witan/cli/help/described_commands.h"

namespace witan::cli {

// Of the program with all of its commands, or of one command, `path` being "witan" or "witan bench moe-layer". `date`
// is "2026-01-31"; `version` stands in the page's foot.
std::string man_page(const DescribedCommand& command, const std::string& path, const std::string& date,
                     const std::string& version);

}  // namespace witan::cli
