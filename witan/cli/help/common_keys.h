// Which of the configuration's keys a command's short help lists: those that most runs set. --help-all lists all.
#pragma once

#include <string>
#include <string_view>

namespace witan::cli {

bool is_common_key(std::string_view key);

// Whether the option of a command is left out of its short help: a flag of a configuration's key, in the group of the
// key's section, that is not common.
bool is_uncommon_flag(const std::string& flag, const std::string& group);

}  // namespace witan::cli
