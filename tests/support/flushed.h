// Records files and folders that the program flushes to disk, in order. It replaces the C library's fsync: include it
// in one file of a test program.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace witan::test {

struct Flushed {
  std::filesystem::path path;
  uintmax_t bytes = 0;             // a file's size at the flush
  std::vector<std::string> names;  // names in a folder at the flush, sorted; empty for a file
};
inline std::mutex flushed_mutex;
inline std::vector<Flushed> flushed;

}  // namespace witan::test

extern "C" int fsync(int fd) {
  namespace fs = std::filesystem;
  std::error_code none;
  witan::test::Flushed what{fs::read_symlink("/proc/self/fd/" + std::to_string(fd), none), 0, {}};
  if (fs::is_directory(what.path, none))
    for (const auto& item : fs::directory_iterator(what.path)) what.names.push_back(item.path().filename());
  else
    what.bytes = fs::file_size(what.path, none);
  std::sort(what.names.begin(), what.names.end());
  {
    const std::lock_guard lock(witan::test::flushed_mutex);
    witan::test::flushed.push_back(std::move(what));
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
