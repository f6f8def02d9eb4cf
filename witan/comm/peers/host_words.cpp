#include "witan/comm/peers/host_words.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace witan {

static_assert(std::atomic<uint32_t>::is_always_lock_free,
              "words that processes share cannot be guarded by a lock of one of them");

std::unique_ptr<HostWords> HostWords::make(HostGroup& group) {
  auto pages = HostPages::make(group, group.size() * static_cast<int64_t>(sizeof(uint32_t)));
  return pages ? std::unique_ptr<HostWords>(new HostWords(std::move(pages), group.rank())) : nullptr;
}

std::atomic<uint32_t>& HostWords::word(int rank) const {
  return reinterpret_cast<std::atomic<uint32_t>*>(pages_->base())[rank];
}

void HostWords::set() noexcept {
  word(rank_).store(1);
}

bool HostWords::await_all(double seconds) const noexcept {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const auto all = [&] {
    return std::ranges::all_of(pages_->ranks(), [&](int rank) { return word(rank).load() != 0; });
  };
  while (!all()) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace witan
