#include "witan/base/resident.h"

#include <malloc.h>

#include <fstream>
#include <sstream>
#include <string>

namespace witan {

std::optional<Resident> read_resident() {
  std::ifstream status("/proc/self/status");
  Resident resident;
  bool found = false;
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string key;
    uint64_t kib = 0;
    if (!(words >> key >> kib)) continue;
    if (key == "VmHWM:") resident.peak = kib << 10, found = true;
    if (key == "VmRSS:") resident.now = kib << 10;
    if (key == "RssFile:") resident.files = kib << 10;
  }
  return found ? std::optional(resident) : std::nullopt;
}

void restart_resident_peak() {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // proc(5)
}

}  // namespace witan
