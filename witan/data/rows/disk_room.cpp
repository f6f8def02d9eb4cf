#include "witan/data/rows/disk_room.h"

#include <sys/stat.h>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

void require_room(const fs::path& folder, uint64_t bytes, const std::string& what, const std::string& way_out) {
  uint64_t held = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file()) held += entry.file_size();
  const uint64_t free = free_disk_bytes(folder);
  require<DiskFullError>(bytes <= free + held, what, " take about ", format_bytes(static_cast<double>(bytes)), ", and ",
                         folder.string(), " has room for ", format_bytes(static_cast<double>(free + held)),
                         ": free some space", way_out, " and give the same command again");
}

bool on_one_disk(const fs::path& a, const fs::path& b) {
  struct stat first {
  }, second{};
  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 && first.st_dev == second.st_dev;
}

}  // namespace witan
