// The operations on files that a process makes, as faults.cpp sees them, with their bytes: what a power failure may
// undo (crash_states.h).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::test {

struct Operation {
  enum class Kind : uint8_t { create, write, resize, sync, make_folder, rename, exchange, remove };
  Kind kind = Kind::create;
  std::string path = {}, to = {};  // below the folder that is watched; `to` of a rename or an exchange
  uint64_t offset = 0;             // of a write; the new size of a resize
  std::string bytes = {};          // of a write
};

// From now on, operations below `folder` (absolute) that succeed are logged, on any thread, in the order in which they
// happen.
void log_operations(const fs::path& folder);
// Writes those so far to a file.
void write_operations(const fs::path& path);
std::vector<Operation> read_operations(const fs::path& path);

// For faults.cpp: makes the call under a lock, and logs the operation that `describe` returns if it succeeds.
class OperationLog {
 public:
  static OperationLog& get();

  template <class Call, class Describe>
  auto made(const Call& call, const Describe& describe) {
    if (!on_) return call();
    const std::lock_guard lock(mutex_);
    Operation operation = describe();  // of files as they are before the call
    const auto result = call();
    if (result >= 0) keep(std::move(operation), static_cast<int64_t>(result));
    return result;
  }

 private:
  friend void log_operations(const fs::path& folder);
  friend void write_operations(const fs::path& path);
  void keep(Operation operation, int64_t result);

  bool on_ = false;
  std::mutex mutex_;
  std::string root_;  // with a slash at its end
  std::vector<Operation> operations_;
};

}  // namespace witan::test
