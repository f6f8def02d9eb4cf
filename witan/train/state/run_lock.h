// The lock of a run's folder, .lock, which the process that trains the run holds.
#pragma once

#include <optional>

#include "witan/base/files/file.h"

namespace witan {

// Held until it is destroyed. The file stays.
class RunLock {
 public:
  // Creates the file where it is missing. Nothing while another process holds it. Throws IoError.
  static std::optional<RunLock> take(const fs::path& run_folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;

  void remove_file(const fs::path& run_folder) const;  // of a run that leaves nothing behind

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// Whether a process holds the lock: this one or another, on this host or another where the file system carries locks.
// Nothing is created or changed. False for a folder without a lock, or one that cannot be read.
bool is_training(const fs::path& run_folder);

}  // namespace witan
