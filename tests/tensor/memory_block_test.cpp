#include "witan/tensor/memory_block.h"

#include <gmock/gmock.h>

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/base/error.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

using test::message_of;
using testing::Rank;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(MemoryPlace, CopiesNames) {
  std::string module = "layers.47.moe.shared_experts.down_proj", op(100, 'o');
  const MemoryPlace place(TraceContext{3, TraceContext::Phase::backward, 1, module, op});
  module.assign(module.size(), '?');
  op.assign(op.size(), '?');
  EXPECT_EQ(describe(place.context()),
            "step 3, backward of micro-batch 1, layers.47.moe.shared_experts.down_proj (" + std::string(31, 'o') + ")");
  EXPECT_FALSE(place.empty());
  EXPECT_TRUE(MemoryPlace().empty());
  EXPECT_EQ(MemoryPlace().context(), TraceContext());
}

TEST(MemorySnapshot, ListsLiveBlocksWithTheirPlaces) {
  Rank rank(1, 16 * kMiB);
  Arena& arena = rank.stream.arena();
  const Tensor weight = rank.stream.empty({1024, 1024}, DType::f32, MemoryTag::weights);
  Tensor gone, kept;
  {
    const TraceContextScope scope(rank.stream, TraceContext::Phase::forward, 2);
    const std::string name = "layers.0.mlp";  // destroyed before the snapshot
    rank.stream.trace_context().module = name;
    gone = rank.stream.empty({3, kMiB / 4}, DType::f64);
    kept = rank.stream.empty({7}, DType::bf16);
  }
  const Tensor view = kept.reshape({7, 1});
  gone = {};
  const MemorySnapshot now = arena.snapshot(MemorySnapshot::Why::not_planned, 5, MemoryTag::gradients);
  ASSERT_EQ(now.blocks.size(), 2u) << "views are no memory, and what was given back neither";
  EXPECT_EQ(now.blocks[0].bytes, 4 * kMiB);
  EXPECT_EQ(now.blocks[0].tag, MemoryTag::weights);
  EXPECT_TRUE(now.blocks[0].place.empty());
  EXPECT_EQ(now.blocks[1].bytes, 14);
  EXPECT_EQ(now.blocks[1].shape, Shape{7});
  EXPECT_EQ(now.blocks[1].dtype, DType::bf16);
  EXPECT_EQ(describe(now.blocks[1].place.context()), "forward of micro-batch 2, layers.0.mlp");
  EXPECT_EQ(now.live[static_cast<size_t>(MemoryTag::activations)], 512);
  EXPECT_EQ(now.peak[static_cast<size_t>(MemoryTag::activations)], 6 * kMiB + 512);
  EXPECT_EQ(now.reserved, 16 * kMiB);
  EXPECT_EQ(now.high_water, 10 * kMiB + 512);
  EXPECT_EQ(now.largest_free, 6 * kMiB) << "the hole is larger than the memory at the top";
  EXPECT_EQ(table_of(now, 1), "    4.00 MiB  weights        float32 [1024, 1024]  \n");
  EXPECT_THAT(table_of(now, 9), ::testing::EndsWith("  bfloat16 [7]  forward of micro-batch 2, layers.0.mlp\n"));
}

TEST(MemorySnapshot, OutOfMemoryNamesTheLargestBlocks) {
  Rank rank(1, 4 * kMiB);
  std::vector<MemorySnapshot> told;
  std::array<int64_t, kMemoryTags> planned;
  planned.fill(3 * kMiB);
  rank.stream.arena().listen([&](const MemorySnapshot& snapshot) { told.push_back(snapshot); }, planned);
  const TraceContextScope scope(rank.stream, "layers.1.attention");
  const Tensor most = rank.stream.empty({kMiB / 2}, DType::f32), more = rank.stream.empty({kMiB / 8}, DType::f32);
  const std::string said = message_of<OutOfMemoryError>([&] { rank.stream.empty({kMiB}, DType::f32); });
  EXPECT_EQ(said,
            "out of memory: 4.00 MiB of activations asked for in layers.1.attention, 2.50 MiB in use of 4.00 MiB "
            "reserved; `witan plan` shows what needs how much. Largest:\n"
            "    2.00 MiB  activations    float32 [524288]  layers.1.attention\n"
            "     512 KiB  activations    float32 [131072]  layers.1.attention");
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].why, MemorySnapshot::Why::refused);
  EXPECT_EQ(told[0].requested, 4 * kMiB);
  EXPECT_EQ(told[0].blocks.size(), 2u);
}

TEST(MemorySnapshot, ReportsATagBeyondItsPlanOnce) {
  Rank rank(1, 16 * kMiB);
  std::vector<MemorySnapshot> told;
  std::array<int64_t, kMemoryTags> planned;
  planned.fill(kMiB);
  rank.stream.arena().listen([&](const MemorySnapshot& snapshot) { told.push_back(snapshot); }, planned);
  std::vector<Tensor> held;
  for (int i = 0; i < 4; ++i) held.push_back(rank.stream.empty({kMiB / 2}, DType::bf16, MemoryTag::gradients));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].why, MemorySnapshot::Why::not_planned);
  EXPECT_EQ(told[0].tag, MemoryTag::gradients);
  EXPECT_EQ(told[0].live[static_cast<size_t>(MemoryTag::gradients)], 2 * kMiB);
  held.push_back(rank.stream.empty({kMiB}, DType::bf16, MemoryTag::weights));
  EXPECT_EQ(told.size(), 2u) << "once per tag";
}

// A side stream's allocations have its rank's place, and a destroyed stream is not asked for one.
TEST(MemorySnapshot, UsesPlacesOfTheMainStream) {
  ThreadPool pool(1);
  const auto arena = Arena::reserve(kMiB);
  Tensor outlives;
  {
    Stream main({Device::Kind::cpu}, arena, pool);
    Stream side(main, 512);
    const TraceContextScope scope(main, "layers.2");
    outlives = side.empty({1}, DType::f32);
  }
  const MemorySnapshot now = arena->snapshot(MemorySnapshot::Why::refused, 0, MemoryTag::weights);
  ASSERT_EQ(now.blocks.size(), 1u);
  EXPECT_EQ(describe(now.blocks[0].place.context()), "layers.2");
  EXPECT_TRUE(now.place.empty());
}

}  // namespace
}  // namespace witan
