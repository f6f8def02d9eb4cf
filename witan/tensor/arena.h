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

  // Memory of passes that are done over and over, several of them under way at a time, as those of a pipeline are.
  // Their blocks end in another order than they began in, so that best fit finds other holes after every pass, and
  // holes grow. Here a block that outlives its pass comes back to the pool when it is freed, and a block that is
  // expected to outlive its pass, since it did the last time, takes any of its size from the pool. How much memory
  // there is then depends on how many blocks of each size are live together, not on where each lies, and repeats as the
  // passes do.
  class Pool {
   public:
    explicit Pool(Arena& arena);  // which it serves as long as it lives; one at a time
    ~Pool();                      // blocks that live on are like any others
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // Which blocks of a pass outlived it when it was last done, in the order in which they were asked for.
    using Pass = std::vector<bool>;
    // While one lives, what is allocated belongs to the pass.
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
    size_t asked_ = 0;                              // blocks of the pass, so far
    std::map<int64_t, size_t> of_pass_;             // by offset: those that are live, by number
    std::set<int64_t> live_;                        // offsets of blocks that come back
    std::map<int64_t, std::vector<int64_t>> free_;  // by bytes: offsets
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
  // A list of live blocks, in order of allocation, and of free ones. Two moments with equal layouts give the same
  // requests the same addresses. Blocks of a pool appear by size alone, since their addresses do not matter. Live
  // blocks allocated before the first `after_records` records are left out: both moments must be later than those, and
  // such a block that only one of them still has shows as free in the other.
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
  int64_t take_best_fit(int64_t bytes, int64_t size, MemoryTag tag);
  void give_back(int64_t offset, int64_t bytes);
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
  Pool* pool_ = nullptr;
  int holds_ = 0;
  std::vector<std::pair<int64_t, int64_t>> held_;       // (offset, bytes) that are free once nothing holds them
  std::map<int64_t, int64_t> free_;                     // offset → bytes, below top_, never adjacent
  std::set<std::pair<int64_t, int64_t>> free_by_size_;  // (bytes, offset)
};

}  // namespace witan
