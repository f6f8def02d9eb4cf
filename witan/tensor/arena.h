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
  // Pinned host memory, which GPUs copy to and from beside their kernels.
  static std::shared_ptr<Arena> reserve_pinned(int64_t bytes);
  // Counts addresses without memory behind them; never full.
  static std::shared_ptr<Arena> meta();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns an offset, a multiple of kAlignment. Throws OutOfMemoryError naming tag, requested, used and reserved
  // bytes.
  int64_t allocate(int64_t bytes, MemoryTag tag);
  void free(int64_t offset, int64_t bytes, MemoryTag tag);
  std::byte* address(int64_t offset) const { return base_ ? base_ + offset : nullptr; }

  // While one lives, freed memory is not allocated again: for work queued on streams that do not wait for each other,
  // and so may still use memory that the host has freed.
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

  // Memory for passes that are repeated, several of them under way at a time, as in a pipeline. Their blocks are freed
  // in another order than they were allocated in, so that with best fit holes would differ after every pass, and grow.
  // Here a block that outlives its pass returns to the pool when it is freed, and a block that is expected to outlive
  // its pass, since it did the last time, takes any block of its size from the pool. The memory needed then depends on
  // how many blocks of each size are live together, not on their addresses, and repeats as the passes do.
  class Pool {
   public:
    explicit Pool(Arena& arena);  // an arena has one pool at a time
    ~Pool();                      // blocks that are still live become ordinary ones
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // Whether each block of a pass outlived it the last time, in the order of allocation.
    using Pass = std::vector<bool>;
    // While one lives, allocated blocks belong to the pass.
    class Scope {
     public:
      Scope(Pool& pool, Pass* pass) : pool_(pool) { pool.pass_ = pass; }  // null: no pass
      ~Scope() { pool_.end_pass(); }
      Scope(const Scope&) = delete;
      Scope& operator=(const Scope&) = delete;

     private:
      Pool& pool_;
    };

   private:
    friend class Arena;
    bool expects_to_keep() const { return pass_ != nullptr && asked_ < pass_->size() && (*pass_)[asked_]; }
    bool take(int64_t& offset, int64_t bytes);
    bool take_back(int64_t offset, int64_t bytes);
    void note(int64_t offset, bool kept);
    void end_pass();

    Arena& arena_;
    Pass* pass_ = nullptr;
    size_t asked_ = 0;                              // blocks of the pass so far
    std::map<int64_t, size_t> of_pass_;             // offset -> number, of the pass's live blocks
    std::set<int64_t> live_;                        // offsets of blocks that return to the pool
    std::map<int64_t, std::vector<int64_t>> free_;  // by bytes: offsets
  };

  // The record of an allocated block; its owner forgets it before the block is freed. Blocks without a record are live
  // but not listed.
  struct Record {
    MemoryBlock block;
    int64_t number = 0;  // from 1, in the order of allocation
    Record *before = nullptr, *after = nullptr;
  };
  void note(Record& record);
  void forget(Record& record);
  // Sets the rank's trace context, for records and errors; null: unknown. It must outlive its use.
  void tell_place(const TraceContext* context) { context_ = context; }
  const TraceContext* place() const { return context_; }

  MemorySnapshot snapshot(MemorySnapshot::Why why, int64_t requested, MemoryTag tag) const;
  // The live blocks, in order of allocation, and the free ones. After two moments with equal layouts, equal requests
  // get equal addresses. Blocks of a pool appear by size only, since their addresses do not matter. Live blocks
  // allocated before the first `after_records` records are left out: both moments must be later than those, and a block
  // that was freed between them shows as free in the later one.
  std::vector<int64_t> layout(int64_t after_records = 0) const;
  int64_t records() const { return noted_; }  // so far
  // Called when memory is refused, before the error is thrown, and once for each tag when its live bytes first exceed
  // `planned`. It must not allocate in this arena.
  using Listener = std::function<void(const MemorySnapshot&)>;
  void listen(Listener listener, const std::array<int64_t, kMemoryTags>& planned);

  int64_t reserved() const { return reserved_; }
  // The highest address ever in use, which must be reserved. Live bytes would hide fragmentation.
  int64_t high_water() const { return high_water_; }
  int64_t live(MemoryTag tag) const { return live_[static_cast<size_t>(tag)]; }
  int64_t live() const;
  // The peak of each tag; tags need not peak at the same time, so their sum may exceed high_water().
  int64_t peak(MemoryTag tag) const { return peak_[static_cast<size_t>(tag)]; }

 private:
  Arena() { planned_.fill(std::numeric_limits<int64_t>::max()); }
  int64_t take_best_fit(int64_t bytes, int64_t size, MemoryTag tag);
  void give_back(int64_t offset, int64_t bytes);
  void release_block(int64_t offset, int64_t bytes);
  void release_held();
  [[noreturn]] void refuse(int64_t bytes, MemoryTag tag);
  void tell_not_planned(int64_t bytes, MemoryTag tag);

  std::byte* base_ = nullptr;
  int gpu_ = -1;  // -1: host memory
  bool pinned_ = false;
  int64_t reserved_ = 0, top_ = 0, high_water_ = 0;
  std::array<int64_t, kMemoryTags> live_{}, peak_{};
  std::array<int64_t, kMemoryTags> planned_;  // the listener is called above these
  Listener listener_;
  Record* records_ = nullptr;  // the last one
  int64_t noted_ = 0;
  const TraceContext* context_ = nullptr;
  Pool* pool_ = nullptr;
  int holds_ = 0;
  std::vector<std::pair<int64_t, int64_t>> held_;       // (offset, bytes) to be freed with the last Hold
  std::map<int64_t, int64_t> free_;                     // offset → bytes, below top_, never adjacent
  std::set<std::pair<int64_t, int64_t>> free_by_size_;  // (bytes, offset)
};

}  // namespace witan
