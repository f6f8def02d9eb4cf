// The environment variables that belong to Witan.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace witan::cli {

// The variables for users, which docs/cli.md lists.
std::span<const std::string_view> user_variables();
// The variables that `witan run` sets for the ranks that it starts.
std::span<const std::string_view> supervisor_variables();

// Warnings about variables that begin with WITAN_ but that nothing reads, each with the nearest known name.
// `environment` is a process's environment: strings "NAME=VALUE", ended by a null. Empty for processes that another
// Witan process has started and warned for: ranks other than 0, and the ranks of `witan run`.
std::vector<std::string> environment_warnings(const char* const* environment);

}  // namespace witan::cli
