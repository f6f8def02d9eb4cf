// Response files: `witan train @list.args` reads arguments from a file, split as by a shell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace witan::cli {

inline constexpr const char* kCommandLine = "command line";

// An argument of the command line, and its origin: kCommandLine or "list.args:12".
struct Argument {
  std::string text;
  std::string origin;
};

// Splits a file into arguments: spaces and line ends separate them, '...' and "..." quote, a backslash takes the next
// character literally (a line end: nothing), # starts a comment where an argument could start. Shell variables and
// commands are refused, not run. Throws UsageError("SOURCE:LINE: ...") for these, for unclosed quotes, for bytes that
// are not text and for more than 65536 arguments.
std::vector<Argument> split_arguments(std::string_view text, const std::string& source);

// The arguments with every @FILE replaced by the contents of the file. A file cannot include another. Throws UsageError
// for a file that cannot be read or is larger than 1 MiB, and what split_arguments throws. `lists` receives the file
// names.
std::vector<Argument> expand_response_files(const std::vector<std::string>& words, std::vector<std::string>& lists);

}  // namespace witan::cli
