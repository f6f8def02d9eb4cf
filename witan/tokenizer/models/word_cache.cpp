#include "witan/tokenizer/models/word_cache.h"

#include <atomic>

namespace witan {

WordCache& WordCache::of_this_thread() {
  static thread_local WordCache cache;
  return cache;
}

uint32_t WordCache::new_owner() {
  static std::atomic<uint32_t> owners{0};
  constexpr uint32_t kMost = (uint32_t{1} << 28) - 1;
  return 1 + owners.fetch_add(1, std::memory_order_relaxed) % kMost;
}

ShortTokens::ShortTokens(const std::vector<std::string>& tokens, const std::vector<int32_t>& ids)
    : shift_(64 - std::bit_width(2 * ids.size() + 1)), entries_(size_t{1} << (64 - shift_)) {
  constexpr size_t kAhead = 16;  // number of tokens that are prefetched
  std::array<Entry, kAhead> next;
  size_t count = 0;
  const auto put = [&] {
    for (const Entry& one : std::span(next).first(count))
      if (Entry& entry = entries_[place(one.key)]; entry.id < 0) entry = one;
    count = 0;
  };
  for (const int32_t id : ids) {
    const std::string& token = tokens[static_cast<size_t>(id)];
    if (token.size() > Key::kLongest) continue;
    next[count] = {Key::of(token, token.size()), id};
    fetch(next[count].key);
    if (++count == kAhead) put();
  }
  put();
}

}  // namespace witan
