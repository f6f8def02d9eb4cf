#include "witan/convert/companions.h"

#include <algorithm>

#include "witan/base/hash.h"

namespace witan {

std::vector<LedgerFile> copy_companions(const fs::path& from, const std::vector<std::string>& names,
                                        const fs::path& to) {
  std::vector<LedgerFile> copied;
  for (const std::string& name : names) {
    const std::string bytes = read_file(from / name);
    fs::create_directories(to);
    write_file_atomically(to / name, bytes);
    copied.push_back({name, bytes.size(), hash_hex(bytes.data(), bytes.size())});
  }
  return copied;
}

void inherit_companions(const fs::path& run, const fs::path& to) {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run / kCompanionFolder, error))
    if (entry.is_regular_file(error)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  copy_companions(run / kCompanionFolder, names, to / kCompanionFolder);
  if (fs::is_regular_file(run / kLedgerName, error)) copy_companions(run, {kLedgerName}, to);
}

}  // namespace witan
