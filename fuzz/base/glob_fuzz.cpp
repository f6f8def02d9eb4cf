// Patterns, and a file path after the first newline. Files that match patterns of data_files must lie in their folder.
#include "fuzz/support.h"
#include "witan/base/files/glob.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  const std::string_view text = fuzz::text_of(data, size);
  const size_t end = text.find('\n');
  if (end == text.npos || text.find('\0') != text.npos) return 0;
  const std::string pattern(text.substr(0, end)), path(text.substr(end + 1));
  const bool matches = matches_data_files(pattern, path);
  const std::string folder = common_folder({pattern});
  assert(!matches || folder.empty() || path == folder || path.starts_with(folder + "/"));
  matches_any({pattern}, path);
  return 0;
}
