// One device's memory: reserved once, at the planned size, and handed out by a deterministic best-fit allocator, so
// that a dry run on the meta device ends at the very same addresses as the real run. Exceeding it is an error. Not
// thread-safe: an arena belongs to one rank.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "witan/tensor/memory_block.h"

namespace witan {

class Arena {
 public:
  static constexpr int64_t kAlignment = 512;  // bytes; covers CPU vectors, TMA pages and cuBLASLt

  // Reserves address space (CPU pages become resident on first touch), or a GPU's memory. Throws OutOfMemoryError.
  static std::shared_ptr<Arena> reserve(int64_t bytes);
  static std::shared_ptr<Arena> reserve_on_gpu(int device, int64_t bytes);
  // Counts addresses without memory behind them; never full.
  static std::shared_ptr<Arena> meta();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // An offset, a multiple of kAlignment. Throws OutOfMemoryError naming tag, requested, used and reserved bytes.
  int64_t allocate(int64_t bytes, MemoryTag tag);
  void free(int64_t offset, int64_t bytes, MemoryTag tag);
  std::byte* address(int64_t offset) const { return base_ ? base_ + offset : nullptr; }

  // While one lives, what is freed is handed out to nobody: for work that is queued on streams which do not wait for
  // each other, and so may use what the host has done with.
  class Hold {
   public:
    explicit Hold(Arena& arena) : arena_(&arena) { ++arena.holds_; }
    Hold(Hold&& other) noexcept : arena_(std::exchange(other.arena_, nullptr)) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (arena_ != nullptr && --arena_->holds_ == 0) arena_->release_held();
    }

   private:
    Arena* arena_;
  };

  // Where the blocks of some work lay when it was last done: work that is done over and over beside other work, as the
  // passes of a pipeline are. While a Return lives, a block goes to its place of the last time if it is as large and
  // nothing is there. Else its place may differ every time, since what is free does, and holes grow.
  class Places {
    friend class Arena;
    std::vector<std::pair<int64_t, int64_t>> blocks_;  // (offset, bytes), in the order in which they were asked for
    size_t next_ = 0;
  };
  class Return {
   public:
    Return(Arena& arena, Places* places);  // null: blocks go where they go without it
    ~Return() { arena_.places_ = before_; }
    Return(const Return&) = delete;
    Return& operator=(const Return&) = delete;

   private:
    Arena& arena_;
    Places* before_;
  };

  // The record of a block that was just allocated, until its owner forgets it before it is freed. Blocks without one
  // are live too, but unknown.
  struct Record {
    MemoryBlock block;
    int64_t number = 0;  // from 1, in the order of allocation
    Record *before = nullptr, *after = nullptr;
  };
  void note(Record& record);
  void forget(Record& record);
  // What the rank does when it allocates, for records and errors; null: nobody knows. It must outlive its use.
  void tell_place(const TraceContext* context) { context_ = context; }
  const TraceContext* place() const { return context_; }

  MemorySnapshot snapshot(MemorySnapshot::Why why, int64_t requested, MemoryTag tag) const;
  // Where everything is that is live or free, the former in the order in which it came: what goes on from two moments
  // of one layout, and asks for the same, gets the same addresses. Of live blocks those that came after the first so
  // many records are listed: where both moments are later than that, they differ in no others that are not free in one.
  std::vector<int64_t> layout(int64_t after_records = 0) const;
  int64_t records() const { return noted_; }  // so far
  // Called when memory is refused, before the error is thrown, and when a tag first has more live bytes than `planned`,
  // once for each; it must not allocate here.
  using Listener = std::function<void(const MemorySnapshot&)>;
  void listen(Listener listener, const std::array<int64_t, kMemoryTags>& planned);

  int64_t reserved() const { return reserved_; }
  // The highest address ever in use: what must be reserved. Live bytes would hide fragmentation.
  int64_t high_water() const { return high_water_; }
  int64_t live(MemoryTag tag) const { return live_[static_cast<size_t>(tag)]; }
  int64_t live() const;
  // The peak of each tag; tags need not peak at the same time, so their sum may exceed high_water().
  int64_t peak(MemoryTag tag) const { return peak_[static_cast<size_t>(tag)]; }

 private:
  Arena() { planned_.fill(std::numeric_limits<int64_t>::max()); }
  bool take_last_place(int64_t& offset, int64_t size);
  int64_t take_best_fit(int64_t bytes, int64_t size, MemoryTag tag);
  void release_block(int64_t offset, int64_t bytes);
  void release_held();
  [[noreturn]] void refuse(int64_t bytes, MemoryTag tag);
  void tell_not_planned(int64_t bytes, MemoryTag tag);

  std::byte* base_ = nullptr;
  int gpu_ = -1;  // -1: host memory
  int64_t reserved_ = 0, top_ = 0, high_water_ = 0;
  std::array<int64_t, kMemoryTags> live_{}, peak_{};
  std::array<int64_t, kMemoryTags> planned_;  // above which the listener is called
  Listener listener_;
  Record* records_ = nullptr;  // the last one
  int64_t noted_ = 0;
  const TraceContext* context_ = nullptr;
  Places* places_ = nullptr;
  int holds_ = 0;
  std::vector<std::pair<int64_t, int64_t>> held_;       // (offset, bytes) that are free once nothing holds them
  std::map<int64_t, int64_t> free_;                     // offset → bytes, below top_, never adjacent
  std::set<std::pair<int64_t, int64_t>> free_by_size_;  // (bytes, offset)
};

}  // namespace witan
