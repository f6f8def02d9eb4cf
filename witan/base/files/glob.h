// Patterns that choose files of a folder or a repository, by their paths below it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace witan {

// Matches like `--include` of the hub's own command line (Python's fnmatch): *, ? and [] also match "/". A pattern that
// ends with "/" matches everything in the folder.
bool matches_any(const std::vector<std::string>& patterns, const std::string& path);

// Matches like data_files of a dataset card: * and ? stay within a folder, ** crosses any number of folders.
bool matches_data_files(std::string_view pattern, std::string_view path);

// The folder that all files lie in which the patterns of data_files can match; "" for the repository's own.
std::string common_folder(const std::vector<std::string>& patterns);

}  // namespace witan
