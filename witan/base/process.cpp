#include "witan/base/process.h"

#include <malloc.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace witan {
namespace {

pid_t tracer_in(const std::string& status) {
  std::ifstream file(status);
  for (std::string word; file >> word;) {
    pid_t tracer = 0;
    if (word == "TracerPid:" && file >> tracer) return tracer;
  }
  return 0;
}

}  // namespace

pid_t tracer() {
  return tracer_in("/proc/self/status");
}

pid_t tracer_of_thread(pid_t thread) {
  return tracer_in("/proc/self/task/" + std::to_string(thread) + "/status");
}

pid_t this_thread() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}

void allow_debugger() {
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

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

namespace {

const Stopwatch since_loaded;

}  // namespace

double process_seconds() {
  return since_loaded.seconds();
}

}  // namespace witan
