// The file operations of a process, as faults.cpp sees them, with their bytes: what a power failure may undo
// (crash_states.h).
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
  std::string path = {}, to = {};  // relative to the watched folder; `to` is the target of a rename or an exchange
  uint64_t offset = 0;             // of a write; the new size for a resize
  std::string bytes = {};          // of a write
};

// Starts logging successful operations of any thread below `folder` (absolute), in order.
void log_operations(const fs::path& folder);
// Writes the operations so far to a file.
void write_operations(const fs::path& path);
std::vector<Operation> read_operations(const fs::path& path);

// For faults.cpp: makes the call under a lock and, if it succeeds, logs the operation that `describe` returns.
class OperationLog {
 public:
  static OperationLog& get();

  template <class Call, class Describe>
  auto made(const Call& call, const Describe& describe) {
    if (!on_) return call();
    const std::lock_guard lock(mutex_);
    Operation operation = describe();  // describes the files before the call
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
  std::string root_;  // ends with a slash
  std::vector<Operation> operations_;
};

}  // namespace witan::test
