// Records of live memory: one of fixed size for each tensor's storage, written when it is allocated, and read when
// memory runs out or exceeds the plan.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tensor/dtype.h"
#include "witan/tensor/shape.h"

namespace witan {

enum class MemoryTag : uint8_t { weights, gradients, optimizer, activations, communication, workspace };
inline constexpr int kMemoryTags = 6;
std::string_view name_of(MemoryTag tag);

struct TraceContext;

// A copy of a trace context at the time of an allocation. It holds the names themselves, truncated to fit, since the
// strings that a trace context refers to may be gone before the memory is.
class MemoryPlace {
 public:
  MemoryPlace() = default;
  explicit MemoryPlace(const TraceContext& context);

  TraceContext context() const;  // refers to this place
  bool empty() const;

 private:
  int64_t step_ = 0, micro_batch_ = -1;
  uint8_t phase_ = 0;
  std::array<char, 55> module_{};  // up to the first zero
  std::array<char, 32> op_{};
};

struct MemoryBlock {
  int64_t offset = 0, bytes = 0;  // in the arena
  MemoryTag tag{};
  DType dtype{};
  Shape shape;
  MemoryPlace place;
};

// An arena's live blocks at a moment, and the request that was refused or exceeded the plan.
struct MemorySnapshot {
  enum class Why : uint8_t { refused, not_planned };
  Why why = Why::refused;
  int64_t requested = 0;  // bytes; 0: nothing
  MemoryTag tag{};        // of the request
  MemoryPlace place;      // of the request
  int64_t reserved = 0, high_water = 0;
  int64_t largest_free = 0;  // contiguous bytes
  std::array<int64_t, kMemoryTags> live{}, peak{};
  std::vector<MemoryBlock> blocks;  // the largest first
};
// "  2.00 KiB  weights  float32 [16, 32]  set-up, layers.0.mlp" for each of the first `most` blocks, a line each.
std::string table_of(const MemorySnapshot& snapshot, size_t most);

}  // namespace witan
