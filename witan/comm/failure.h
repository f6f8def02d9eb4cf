// Records that a rank of a world has failed, for ranks that wait for a device rather than in a rendezvous.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "witan/base/threads/mutex.h"

namespace witan {

// Thread-safe.
class Failure {
 public:
  // `told` is called once, by the first raise().
  explicit Failure(std::function<void()> told = {}) : told_(std::move(told)) {}
  bool raised() const { return raised_.load(); }
  void raise();
  // `word`, which a device may poll, becomes 1 when a rank fails; at once if one has.
  void watch(const std::shared_ptr<std::atomic<uint32_t>>& word);

 private:
  const std::function<void()> told_;
  std::atomic<bool> raised_{false};
  Mutex mutex_;
  std::vector<std::weak_ptr<std::atomic<uint32_t>>> words_ WITAN_GUARDED_BY(mutex_);
};

}  // namespace witan
