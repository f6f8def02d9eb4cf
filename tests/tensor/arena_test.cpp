#include "witan/tensor/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

using test::message_of;

constexpr int64_t kUnit = Arena::kAlignment;
constexpr MemoryTag kTag = MemoryTag::activations;

TEST(Arena, RoundsSizesUpAndAlignsAddresses) {
  const auto arena = Arena::reserve(10 * kUnit);
  EXPECT_EQ(arena->allocate(1, kTag), 0);
  EXPECT_EQ(arena->allocate(kUnit, kTag), kUnit);
  EXPECT_EQ(arena->allocate(kUnit + 1, kTag), 2 * kUnit);
  EXPECT_EQ(arena->allocate(0, kTag), 4 * kUnit) << "empty blocks have their own addresses, too";
  EXPECT_EQ(arena->live(), 5 * kUnit);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->address(0)) % kUnit, 0u);
  EXPECT_EQ(Arena::reserve(1)->reserved(), kUnit);
}

TEST(Arena, UsesTheSmallestSufficientBlock) {
  const auto arena = Arena::meta();
  std::vector<int64_t> at;
  for (const int64_t units : {4, 1, 2, 1, 3, 1}) at.push_back(arena->allocate(units * kUnit, kTag));
  for (const size_t i : {0u, 2u, 4u}) arena->free(at[i], std::vector<int64_t>{4, 1, 2, 1, 3, 1}[i] * kUnit, kTag);
  EXPECT_EQ(arena->allocate(2 * kUnit, kTag), at[2]);
  EXPECT_EQ(arena->allocate(2 * kUnit, kTag), at[4]) << "the smaller of 4 and 3 units";
  EXPECT_EQ(arena->allocate(1 * kUnit, kTag), at[4] + 2 * kUnit) << "the remainder";
  EXPECT_EQ(arena->allocate(5 * kUnit, kTag), 12 * kUnit) << "no free block suffices: at the top";
}

TEST(Arena, UsesTheLowestOfEqualBlocks) {
  const auto arena = Arena::meta();
  for (int i = 0; i < 5; ++i) arena->allocate(kUnit, kTag);
  arena->free(3 * kUnit, kUnit, kTag);
  arena->free(1 * kUnit, kUnit, kTag);
  EXPECT_EQ(arena->allocate(kUnit, kTag), kUnit);
}

TEST(Arena, MergesFreeNeighbours) {
  // The middle last, which merges with both sides.
  for (const std::vector<int64_t>& order : {std::vector<int64_t>{0, 2, 1}, {0, 1, 2}, {2, 1, 0}, {1, 0, 2}}) {
    const auto arena = Arena::meta();
    for (int i = 0; i < 4; ++i) arena->allocate(kUnit, kTag);
    for (const int64_t block : order) arena->free(block * kUnit, kUnit, kTag);
    EXPECT_EQ(arena->allocate(3 * kUnit, kTag), 0);
    EXPECT_EQ(arena->high_water(), 4 * kUnit);
  }
}

TEST(Arena, ReusesMemoryFreedAtTheTopForAnySize) {
  const auto arena = Arena::reserve(4 * kUnit);
  arena->allocate(kUnit, kTag);
  const int64_t last = arena->allocate(kUnit, kTag);
  arena->free(last, kUnit, kTag);
  EXPECT_EQ(arena->allocate(3 * kUnit, kTag), last);
  EXPECT_EQ(arena->high_water(), 4 * kUnit);
}

// Otherwise the second of two equal evaluations could end higher than the first, unlike planned.
TEST(Arena, AddressesDependOnLiveBlocksOnly) {
  const auto phase = [](Arena& arena) {  // ends with the blocks it began with
    std::vector<int64_t> at;
    const std::vector<int64_t> units = {7, 2, 5, 1};
    for (const int64_t size : units) at.push_back(arena.allocate(size * kUnit, kTag));
    arena.free(at[0], units[0] * kUnit, kTag);
    for (const int64_t size : {3, 6}) at.push_back(arena.allocate(size * kUnit, kTag));
    for (size_t i = 1; i < 4; ++i) arena.free(at[i], units[i] * kUnit, kTag);
    arena.free(at[4], 3 * kUnit, kTag);
    arena.free(at[5], 6 * kUnit, kTag);
    return at;
  };
  std::vector<int64_t> alone;
  for (const int64_t before : {0, 1, 4, 8, 9, 20}) {
    const auto arena = Arena::meta();
    const std::vector<int64_t> kept = {arena->allocate(kUnit, kTag), arena->allocate(2 * kUnit, kTag),
                                       arena->allocate(kUnit, kTag)};
    arena->free(kept[1], 2 * kUnit, kTag);
    if (before > 0) arena->free(arena->allocate(before * kUnit, kTag), before * kUnit, kTag);
    const std::vector<int64_t> first = phase(*arena);
    if (before == 0) alone = first;
    EXPECT_EQ(phase(*arena), alone) << "again, after a block of " << before;
    EXPECT_EQ(first, alone) << "after a block of " << before;
  }
}

// Allocates a block of `kept` units that outlives the pass, between two that do not.
int64_t pass(Arena& arena, Arena::Pool& pool, Arena::Pool::Pass& known, int64_t kept) {
  const Arena::Pool::Scope scope(pool, &known);
  const int64_t first = arena.allocate(3 * kUnit, kTag), block = arena.allocate(kept * kUnit, kTag),
                second = arena.allocate(4 * kUnit, kTag);
  arena.free(first, 3 * kUnit, kTag);
  arena.free(second, 4 * kUnit, kTag);
  return block;
}

TEST(Arena, BlocksThatOutliveTheirPassesReturnToThePool) {
  const auto arena = Arena::meta();
  Arena::Pool pool(*arena);
  Arena::Pool::Pass known;
  const int64_t unknown = pass(*arena, pool, known, 2);
  EXPECT_EQ(known, (Arena::Pool::Pass{false, true, false}));
  const int64_t a = pass(*arena, pool, known, 2), b = pass(*arena, pool, known, 2);
  arena->free(a, 2 * kUnit, kTag);
  arena->free(b, 2 * kUnit, kTag);
  EXPECT_NE(arena->allocate(2 * kUnit, kTag), b) << "allocations outside passes do not use the pool";
  EXPECT_EQ(pass(*arena, pool, known, 2), b) << "the last block returned";
  EXPECT_EQ(pass(*arena, pool, known, 2), a);
  const int64_t c = pass(*arena, pool, known, 1);
  EXPECT_TRUE(c != a && c != b && c != unknown) << "another size";
}

TEST(Arena, APoolFreesItsBlocksAtItsEnd) {
  const auto arena = Arena::meta();
  int64_t live = 0;
  {
    Arena::Pool pool(*arena);
    Arena::Pool::Pass known;
    arena->free(pass(*arena, pool, known, 2), 2 * kUnit, kTag);
    live = pass(*arena, pool, known, 2);
    arena->free(pass(*arena, pool, known, 2), 2 * kUnit, kTag);
  }
  EXPECT_EQ(arena->live(), 2 * kUnit);
  arena->free(live, 2 * kUnit, kTag);
  EXPECT_EQ(arena->layout(), Arena::meta()->layout()) << "all memory is free and merged";
}

TEST(Arena, HeldBlocksReturnToThePoolWhenReleased) {
  const auto arena = Arena::meta();
  Arena::Pool pool(*arena);
  Arena::Pool::Pass known;
  arena->free(pass(*arena, pool, known, 2), 2 * kUnit, kTag);
  const int64_t block = pass(*arena, pool, known, 2);
  {
    const Arena::Hold hold(*arena);
    arena->free(block, 2 * kUnit, kTag);
    EXPECT_NE(pass(*arena, pool, known, 2), block);
  }
  EXPECT_EQ(pass(*arena, pool, known, 2), block);
}

// Passes of two kinds, several in flight, end in pseudo-random order: layout() must be the same after each round, and a
// thousand rounds must use no more memory than a few.
TEST(Arena, PoolMemoryRepeatsWithPasses) {
  const auto arena = Arena::meta();
  Arena::Pool pool(*arena);
  Arena::Pool::Pass of_two, of_five;
  std::vector<int64_t> twos, fives;
  const auto end = [&](std::vector<int64_t>& blocks, size_t which, int64_t units) {
    arena->free(blocks[which], units * kUnit, kTag);
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
  };
  const Philox rng(7, 0);
  uint64_t drawn = 0;
  std::vector<int64_t> layout;
  int64_t high_water = 0;
  for (int round = 0; round < 1000; ++round) {
    while (twos.size() < 7) twos.push_back(pass(*arena, pool, of_two, 2));
    while (fives.size() < 5) fives.push_back(pass(*arena, pool, of_five, 5));
    for (int i = 0; i < 3; ++i) end(twos, rng.below(twos.size(), drawn++), 2);
    for (int i = 0; i < 2; ++i) end(fives, rng.below(fives.size(), drawn++), 5);
    if (round == 30) {
      layout = arena->layout();
      high_water = arena->high_water();
    }
    if (round > 30) {
      ASSERT_EQ(arena->layout(), layout) << round;
    }
  }
  EXPECT_EQ(arena->high_water(), high_water);
}

TEST(Arena, CountsByTag) {
  const auto arena = Arena::meta();
  const int64_t w = arena->allocate(3 * kUnit, MemoryTag::weights);
  arena->allocate(kUnit, MemoryTag::workspace);
  arena->free(w, 3 * kUnit, MemoryTag::weights);
  arena->allocate(kUnit, MemoryTag::weights);
  EXPECT_EQ(arena->live(MemoryTag::weights), kUnit);
  EXPECT_EQ(arena->peak(MemoryTag::weights), 3 * kUnit);
  EXPECT_EQ(arena->live(MemoryTag::workspace), kUnit);
  EXPECT_EQ(arena->live(MemoryTag::optimizer), 0);
  EXPECT_EQ(arena->live(), 2 * kUnit);
  EXPECT_EQ(arena->high_water(), 4 * kUnit);
  EXPECT_EQ(name_of(MemoryTag::communication), "communication");
}

TEST(Arena, DoesNotGrow) {
  const auto arena = Arena::reserve(4096);
  arena->allocate(1024, MemoryTag::weights);
  const int64_t top = arena->allocate(1024, MemoryTag::weights);
  EXPECT_EQ(
      message_of<OutOfMemoryError>([&] { arena->allocate(8192, MemoryTag::gradients); }),
      "out of memory: 8.00 KiB of gradients asked for, 2.00 KiB in use of 4.00 KiB reserved; `witan plan` shows what "
      "needs how much");
  arena->free(top, 1024, MemoryTag::weights);
  EXPECT_THROW(arena->allocate(8192, MemoryTag::gradients), OutOfMemoryError);
  EXPECT_EQ(arena->live(), 1024);
  EXPECT_EQ(arena->allocate(3072, MemoryTag::gradients), top) << "a failed allocation changes nothing";
  EXPECT_THROW(arena->allocate(1, kTag), OutOfMemoryError);
  EXPECT_THROW(Arena::reserve(int64_t{1} << 60), OutOfMemoryError);
}

TEST(Arena, MetaHasNoMemoryAndNoLimit) {
  const auto arena = Arena::meta();
  EXPECT_EQ(arena->allocate(int64_t{1} << 50, kTag), 0);
  EXPECT_EQ(arena->address(0), nullptr);
  EXPECT_EQ(arena->high_water(), int64_t{1} << 50);
}

// A reference implementation of the rule: best fit, lowest address first, else at the top. One bool per unit.
struct PlainArena {
  std::vector<bool> used;
  size_t high_water = 0;

  int64_t allocate(size_t units) {
    size_t best = used.size(), best_length = ~size_t{0};
    for (size_t begin = 0; begin < used.size();) {
      size_t end = begin;
      while (end < used.size() && !used[end]) ++end;
      if (end - begin >= units && end - begin < best_length) best = begin, best_length = end - begin;
      begin = std::max(end, begin + 1);
    }
    used.resize(std::max(used.size(), best + units));
    for (size_t i = best; i < best + units; ++i) {
      EXPECT_FALSE(used[i]) << "two blocks overlap";
      used[i] = true;
    }
    high_water = std::max(high_water, used.size());
    return static_cast<int64_t>(best) * kUnit;
  }
  void free(int64_t offset, size_t units) {
    for (size_t i = 0; i < units; ++i) used[static_cast<size_t>(offset / kUnit) + i] = false;
    while (!used.empty() && !used.back()) used.pop_back();
  }
};

TEST(Arena, MetaAndRealFollowTheRuleOnRandomSequences) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto real = Arena::reserve(4000 * kUnit), meta = Arena::meta();
    PlainArena plain;
    const Philox rng(seed, 0);
    struct Block {
      int64_t offset, bytes;
      MemoryTag tag;
    };
    std::vector<Block> blocks;
    for (uint64_t step = 0; step < 600; ++step) {
      if (blocks.empty() || rng.below(100, 4 * step) < (step < 400 ? 60u : 30u)) {
        const auto bytes = static_cast<int64_t>(rng.below(9 * kUnit, 4 * step + 1)) + 1;
        const auto tag = static_cast<MemoryTag>(rng.below(kMemoryTags, 4 * step + 2));
        const int64_t offset = real->allocate(bytes, tag);
        ASSERT_EQ(offset, meta->allocate(bytes, tag)) << "seed " << seed << ", step " << step;
        ASSERT_EQ(offset, plain.allocate(static_cast<size_t>((bytes + kUnit - 1) / kUnit)));
        std::memset(real->address(offset), static_cast<int>(step), static_cast<size_t>(bytes));
        blocks.push_back({offset, bytes, tag});
      } else {
        const size_t i = rng.below(blocks.size(), 4 * step + 3);
        const Block block = blocks[i];
        blocks.erase(blocks.begin() + static_cast<int64_t>(i));
        for (Arena* arena : {real.get(), meta.get()}) arena->free(block.offset, block.bytes, block.tag);
        plain.free(block.offset, static_cast<size_t>((block.bytes + kUnit - 1) / kUnit));
      }
      ASSERT_EQ(real->high_water(), static_cast<int64_t>(plain.high_water) * kUnit);
      ASSERT_EQ(real->live(), std::ranges::count(plain.used, true) * kUnit);
    }
    EXPECT_EQ(real->high_water(), meta->high_water());
    for (int tag = 0; tag < kMemoryTags; ++tag)
      EXPECT_EQ(real->peak(static_cast<MemoryTag>(tag)), meta->peak(static_cast<MemoryTag>(tag)));
  }
}

}  // namespace
}  // namespace witan
