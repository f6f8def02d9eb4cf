#include "witan/comm/failure.h"

namespace witan {

void Failure::raise() {
  {
    const MutexLock lock(mutex_);
    if (raised_.exchange(true)) return;
    for (const auto& watched : words_)
      if (const auto word = watched.lock()) word->store(1);
  }
  if (told_) told_();
}

void Failure::watch(const std::shared_ptr<std::atomic<uint32_t>>& word) {
  const MutexLock lock(mutex_);
  std::erase_if(words_, [](const auto& watched) { return watched.expired(); });
  words_.push_back(word);
  if (raised_.load()) word->store(1);
}

}  // namespace witan
