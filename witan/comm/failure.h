// The failure of a rank: what stops the other ranks, and which error the process reports.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/threads/mutex.h"

namespace witan {

// A rank was stopped because another one failed; never the root cause.
class AbortedError : public CommError {
 public:
  using CommError::CommError;
};

// Records that a rank of the world has failed, for ranks that wait for a device rather than in a rendezvous.
// Thread-safe.
class Failure {
 public:
  // `on_raise` is called by the first raise().
  explicit Failure(std::function<void()> on_raise = {}) : on_raise_(std::move(on_raise)) {}
  bool raised() const { return raised_.load(); }
  void raise();
  // Sets `word`, which a device may poll, to 1 when a rank fails; immediately if one already has.
  void watch(const std::shared_ptr<std::atomic<uint32_t>>& word);

 private:
  const std::function<void()> on_raise_;
  std::atomic<bool> raised_{false};
  Mutex mutex_;
  std::vector<std::weak_ptr<std::atomic<uint32_t>>> words_ WITAN_GUARDED_BY(mutex_);
};

// How likely an error is to be the root cause of the others; smaller is likelier.
enum class Suspicion : uint8_t { own_error, communication, aborted };
Suspicion suspicion_of(const std::exception_ptr& error);

// Rethrows the error in its class with "rank 2: " before its message; anything but a witan::Error becomes an Error with
// ExitCode::internal.
[[noreturn]] void rethrow_named(int rank, const std::exception_ptr& error);

}  // namespace witan
