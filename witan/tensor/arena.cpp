#include "witan/tensor/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/trace_context.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace witan {
namespace {

int64_t rounded(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

// Under AddressSanitizer a freed block may not be accessed until it is allocated again.
void set_poison([[maybe_unused]] std::byte* address, [[maybe_unused]] int64_t bytes, [[maybe_unused]] bool poisoned) {
#if defined(__SANITIZE_ADDRESS__)
  if (!address) return;
  if (poisoned)
    __asan_poison_memory_region(address, static_cast<size_t>(bytes));
  else
    __asan_unpoison_memory_region(address, static_cast<size_t>(bytes));
#endif
}

}  // namespace

std::shared_ptr<Arena> Arena::reserve(int64_t bytes) {
  std::shared_ptr<Arena> arena(new Arena);
  arena->reserved_ = rounded(bytes);
  void* base = ::mmap(nullptr, static_cast<size_t>(arena->reserved_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require<OutOfMemoryError>(
      base != MAP_FAILED, "cannot reserve ", format_bytes(static_cast<double>(bytes)),
      " of memory: this machine does not have that much; `witan plan` shows what a smaller model needs");
  arena->base_ = static_cast<std::byte*>(base);
  ::madvise(base, static_cast<size_t>(arena->reserved_), MADV_HUGEPAGE);  // fewer TLB misses; a refusal costs nothing
  set_poison(arena->base_, arena->reserved_, true);
  return arena;
}

std::shared_ptr<Arena> Arena::meta() {
  std::shared_ptr<Arena> arena(new Arena);
  arena->reserved_ = std::numeric_limits<int64_t>::max() / 2;
  return arena;
}

std::shared_ptr<Arena> Arena::reserve_on_gpu(int device, int64_t bytes) {
  std::shared_ptr<Arena> arena(new Arena);
  arena->reserved_ = rounded(bytes);
  arena->base_ = cuda::allocate(device, arena->reserved_);
  arena->gpu_ = device;
  return arena;
}

std::shared_ptr<Arena> Arena::reserve_pinned(int64_t bytes) {
  std::shared_ptr<Arena> arena(new Arena);
  arena->reserved_ = rounded(bytes);
  arena->base_ = cuda::allocate_pinned(arena->reserved_);
  arena->pinned_ = true;
  set_poison(arena->base_, arena->reserved_, true);
  return arena;
}

Arena::~Arena() {
  if (!base_) return;
  if (gpu_ >= 0) {
    cuda::release(gpu_, base_);
    return;
  }
  set_poison(base_, reserved_, false);
  if (pinned_)
    cuda::release_pinned(base_);
  else
    ::munmap(base_, static_cast<size_t>(reserved_));
}

int64_t Arena::live() const {
  return std::accumulate(live_.begin(), live_.end(), int64_t{0});
}

Arena::Pool::Pool(Arena& arena) : arena_(arena) {
  assert(arena.pool_ == nullptr);
  arena.pool_ = this;
}

Arena::Pool::~Pool() {
  arena_.pool_ = nullptr;
  for (const auto& [bytes, offsets] : free_)
    for (const int64_t offset : offsets) arena_.release_block(offset, bytes);
}

bool Arena::Pool::take(int64_t& offset, int64_t bytes) {
  const auto found = free_.find(bytes);
  if (found == free_.end()) return false;
  offset = found->second.back();
  found->second.pop_back();
  if (found->second.empty()) free_.erase(found);
  return true;
}

// Blocks that are freed within their pass do not return to the pool.
bool Arena::Pool::take_back(int64_t offset, int64_t bytes) {
  of_pass_.erase(offset);
  if (live_.erase(offset) == 0) return false;
  free_[bytes].push_back(offset);
  return true;
}

void Arena::Pool::note(int64_t offset, bool kept) {
  if (pass_ == nullptr) return;
  of_pass_.emplace(offset, asked_++);
  if (kept) live_.insert(offset);
}

void Arena::Pool::end_pass() {
  if (pass_ != nullptr) pass_->assign(asked_, false);
  for (const auto& [offset, number] : of_pass_) (*pass_)[number] = true;
  pass_ = nullptr;
  asked_ = 0;
  of_pass_.clear();
}

// The address of a block depends on the live blocks only, not on blocks that were freed before, except with the pool of
// a pipeline, which lives within a step. So a step, an evaluation or a sample that begins with the same blocks uses the
// same addresses, whatever ran before it, and one of each in a plan stands for all of a run.
int64_t Arena::allocate(int64_t bytes, MemoryTag tag) {
  const int64_t size = rounded(bytes);
  int64_t offset = 0;
  const bool kept = pool_ != nullptr && pool_->expects_to_keep();
  if (!kept || !pool_->take(offset, size)) offset = take_best_fit(bytes, size, tag);
  if (pool_ != nullptr) pool_->note(offset, kept);
  if (gpu_ < 0) set_poison(address(offset), size, false);
  const auto t = static_cast<size_t>(tag);
  live_[t] += size;
  peak_[t] = std::max(peak_[t], live_[t]);
  if (live_[t] > planned_[t]) tell_not_planned(bytes, tag);
  return offset;
}

// Takes the smallest free block that is large enough, at the lowest address; otherwise memory above all blocks.
int64_t Arena::take_best_fit(int64_t bytes, int64_t size, MemoryTag tag) {
  const auto fit = free_by_size_.lower_bound({size, 0});
  if (fit == free_by_size_.end()) {
    if (size > reserved_ - top_) refuse(bytes, tag);
    const int64_t offset = std::exchange(top_, top_ + size);
    high_water_ = std::max(high_water_, top_);
    return offset;
  }
  const auto [block, start] = *fit;
  free_by_size_.erase(fit);
  free_.erase(start);
  if (block > size) release_block(start + size, block - size);
  return start;
}

void Arena::note(Record& record) {
  if (context_ != nullptr) record.block.place = MemoryPlace(*context_);
  record.number = ++noted_;
  record.before = records_;
  if (records_ != nullptr) records_->after = &record;
  records_ = &record;
}

void Arena::forget(Record& record) {
  if (record.before != nullptr) record.before->after = record.after;
  (record.after != nullptr ? record.after->before : records_) = record.before;
}

MemorySnapshot Arena::snapshot(MemorySnapshot::Why why, int64_t requested, MemoryTag tag) const {
  MemorySnapshot snapshot;
  snapshot.why = why;
  snapshot.requested = requested;
  snapshot.tag = tag;
  snapshot.reserved = reserved_;
  snapshot.high_water = high_water_;
  snapshot.live = live_;
  snapshot.peak = peak_;
  if (context_ != nullptr) snapshot.place = MemoryPlace(*context_);
  snapshot.largest_free = reserved_ - top_;
  if (!free_by_size_.empty()) snapshot.largest_free = std::max(snapshot.largest_free, free_by_size_.rbegin()->first);
  for (const Record* record = records_; record != nullptr; record = record->before)
    snapshot.blocks.push_back(record->block);
  std::ranges::sort(snapshot.blocks, [](const MemoryBlock& a, const MemoryBlock& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.offset < b.offset;
  });
  return snapshot;
}

std::vector<int64_t> Arena::layout(int64_t after_records) const {
  const auto place_of = [&](int64_t offset) { return pool_ != nullptr && pool_->live_.contains(offset) ? -1 : offset; };
  std::vector<int64_t> layout{top_};
  for (const Record* record = records_; record != nullptr && record->number > after_records; record = record->before)
    layout.insert(layout.end(),
                  {place_of(record->block.offset), record->block.bytes, static_cast<int64_t>(record->block.tag)});
  layout.push_back(-1);
  for (const auto& [offset, bytes] : free_) layout.insert(layout.end(), {offset, bytes});
  layout.push_back(-1);
  for (const auto& [offset, bytes] : held_) layout.insert(layout.end(), {place_of(offset), bytes});
  layout.push_back(-1);
  if (pool_ != nullptr)
    for (const auto& [bytes, offsets] : pool_->free_) layout.insert(layout.end(), {bytes, std::ssize(offsets)});
  return layout;
}

void Arena::listen(Listener listener, const std::array<int64_t, kMemoryTags>& planned) {
  listener_ = std::move(listener);
  planned_ = planned;
}

void Arena::refuse(int64_t bytes, MemoryTag tag) {
  constexpr size_t kNamed = 5;
  const MemorySnapshot now = snapshot(MemorySnapshot::Why::refused, bytes, tag);
  if (listener_) listener_(now);
  const std::string table = table_of(now, kNamed);
  throw OutOfMemoryError(cat(
      "out of memory: ", format_bytes(static_cast<double>(bytes)), " of ", name_of(tag), " asked for",
      in_words(now.place.context()), ", ", format_bytes(static_cast<double>(live())), " in use of ",
      format_bytes(static_cast<double>(reserved_)), " reserved; `witan plan` shows what needs how much",
      table.empty() ? "" : ". Largest:\n", std::string_view(table).substr(0, table.size() - (table.empty() ? 0 : 1))));
}

// A plan has bytes for each tag; exceeding them is reported once.
void Arena::tell_not_planned(int64_t bytes, MemoryTag tag) {
  planned_[static_cast<size_t>(tag)] = std::numeric_limits<int64_t>::max();
  if (listener_) listener_(snapshot(MemorySnapshot::Why::not_planned, bytes, tag));
}

void Arena::free(int64_t offset, int64_t bytes, MemoryTag tag) {
  const int64_t size = rounded(bytes);
  live_[static_cast<size_t>(tag)] -= size;
  assert(live_[static_cast<size_t>(tag)] >= 0);
  if (gpu_ < 0) set_poison(address(offset), size, true);
  if (holds_ > 0)
    held_.emplace_back(offset, size);
  else
    give_back(offset, size);
}

void Arena::release_held() {
  for (const auto& [offset, bytes] : std::exchange(held_, {})) give_back(offset, bytes);
}

void Arena::give_back(int64_t offset, int64_t bytes) {
  if (pool_ == nullptr || !pool_->take_back(offset, bytes)) release_block(offset, bytes);
}

void Arena::release_block(int64_t offset, int64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    free_by_size_.erase({next->second, next->first});
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      free_by_size_.erase({previous->second, previous->first});
      free_.erase(previous);
    }
  }
  if (offset + bytes == top_) {  // no live block is above it
    top_ = offset;
    return;
  }
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

}  // namespace witan
