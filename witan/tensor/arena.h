// One device's memory: reserved once, at the planned size, and handed out by a deterministic best-fit allocator, so
// that a dry run on the meta device ends at the very same addresses as the real run. Exceeding it is an error. Not
// thread-safe: an arena belongs to one rank.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

namespace witan {

enum class MemoryTag : uint8_t { weights, gradients, optimizer, activations, communication, workspace };
inline constexpr int kMemoryTags = 6;
std::string_view name_of(MemoryTag tag);

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

  int64_t reserved() const { return reserved_; }
  // The highest address ever in use: what must be reserved. Live bytes would hide fragmentation.
  int64_t high_water() const { return high_water_; }
  int64_t live(MemoryTag tag) const { return live_[static_cast<size_t>(tag)]; }
  int64_t live() const;
  // The peak of each tag; tags need not peak at the same time, so their sum may exceed high_water().
  int64_t peak(MemoryTag tag) const { return peak_[static_cast<size_t>(tag)]; }

 private:
  Arena() = default;
  void release_block(int64_t offset, int64_t bytes);

  std::byte* base_ = nullptr;
  int gpu_ = -1;  // -1: host memory
  int64_t reserved_ = 0, top_ = 0, high_water_ = 0;
  std::array<int64_t, kMemoryTags> live_{}, peak_{};
  std::map<int64_t, int64_t> free_;                     // offset → bytes, below top_, never adjacent
  std::set<std::pair<int64_t, int64_t>> free_by_size_;  // (bytes, offset)
};

}  // namespace witan
