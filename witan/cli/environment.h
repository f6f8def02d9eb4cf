// Environment variables that Witan reads by names of its own.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace witan::cli {

// Those for users: the tables of docs/cli.md.
std::span<const std::string_view> user_variables();
// Those that `witan run` sets for the ranks that it starts.
std::span<const std::string_view> supervisor_variables();

// Warnings of variables that begin with WITAN_ and nobody reads, each with the one that may have been meant.
// `environment` is that of a process, "NAME=VALUE" each, null behind the last. Empty in a process that another one of
// Witan has started, which has given them: a rank but the first, and a rank of `witan run`.
std::vector<std::string> environment_warnings(const char* const* environment);

}  // namespace witan::cli
