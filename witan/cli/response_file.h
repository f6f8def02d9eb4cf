// Response files: `witan train @list.args` reads words of the command line from a file, as a shell would cut them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace witan::cli {

// A word of the command line, and where it stands: "command line" or "list.args:12".
struct Word {
  std::string text;
  std::string origin;
};

// Cuts a list into words: blanks and line ends separate them, '...' and "..." keep them together, a backslash takes the
// next character as it is (a line end: nothing), # begins a comment where a word could begin. Shell variables and
// commands are refused, not run. Throws UsageError("SOURCE:LINE: ...") for these, for quotes that do not end, for
// bytes that are not text and for more than 65536 words.
std::vector<Word> split_words(std::string_view text, const std::string& source);

// The words with every @FILE replaced by what the file holds. A list cannot name another. Throws UsageError for a file
// that cannot be read or is larger than 1 MiB, and what split_words throws. `lists` receives the files.
std::vector<Word> expand_response_files(const std::vector<std::string>& words, std::vector<std::string>& lists);

}  // namespace witan::cli
