#include "witan/kernels/attention/attention_path.h"

#include <gtest/gtest.h>

#include "witan/base/threads/threads.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/tensor.h"

namespace witan {
namespace {

using kernels::OwnAttention;

// A stream that plans for a GPU: everything is counted and allocated, nothing is computed.
struct PlannedGpu {
  ThreadPool pool{1};
  std::shared_ptr<Arena> arena = Arena::meta();
  Stream stream{{Device::Kind::meta, 0, Device::Kind::cuda}, arena, pool};

  Tensor tensor(const Shape& shape, DType dtype = DType::bf16) { return stream.empty(shape, dtype); }
  kernels::AttentionInputs inputs(int64_t S, int64_t H, int64_t G, int64_t hd, DType dtype = DType::bf16) {
    return {tensor({1, S, H, hd}, dtype), tensor({1, S, G, hd}, dtype), tensor({1, S, G, hd}, dtype), Tensor(), 1};
  }
  void backward(const kernels::AttentionInputs& in) {
    const kernels::AttentionGradients to{stream.empty_like(in.q), stream.empty_like(in.k), stream.empty_like(in.v)};
    const Tensor lse = tensor({1, in.q.size(2), in.q.size(1)}, DType::f32);
    kernels::attention_backward(stream, to, in.q, in.q, lse, in);
  }
  int64_t workspace() const { return arena->peak(MemoryTag::workspace); }
};

// dq in float32 takes 4 bytes per element of a group's queries, and dk and dv of each of its heads are kept beside it.
TEST(AttentionPath, PlansTheWorkspaceOfALongSequence) {
  PlannedGpu short_one, long_one;
  short_one.backward(short_one.inputs(16384, 32, 4, 128));
  EXPECT_EQ(short_one.workspace(), Stream::kScratchBytes);
  const auto in = long_one.inputs(131072, 32, 4, 128);
  long_one.backward(in);
  const int64_t bytes = kernels::attention_path(in, true).workspace, sums = int64_t{131072} * 8 * 128 * 4;
  EXPECT_GE(bytes, 2 * sums);
  EXPECT_LE(bytes, 2 * sums + (int64_t{8} << 20)) << "no more than a group needs";
  EXPECT_EQ(long_one.workspace(), Stream::kScratchBytes + bytes);
  EXPECT_EQ(kernels::attention_path(in, false).workspace, 0);
}

// Compares with the formula, to the megabyte to which the plan is rounded. A group of one head needs no sums of dk and
// dv. If the first queries see no key of a block, lse of the others is copied.
TEST(AttentionPath, WorkspaceIsThatOfOneGroup) {
  PlannedGpu gpu;
  const int64_t S = 524288, hd = 128, MiB = int64_t{1} << 20;
  const auto planned = [](const kernels::AttentionInputs& in) { return kernels::attention_path(in, true).workspace; };
  const auto rounded = [&](int64_t bytes) { return (bytes / MiB + 1) * MiB; };
  for (const int64_t heads : {1, 8}) {
    const int64_t of_keys = heads > 1 ? S * 2 * hd * 2 : 0;
    EXPECT_EQ(planned(gpu.inputs(S, 4 * heads, 4, hd)), rounded(heads * (S * hd * 4 + S * 4 + of_keys))) << heads;
  }
  auto block = gpu.inputs(2 * S, 8, 1, hd);
  block.k = block.v = gpu.tensor({1, S, 1, hd});
  block.block = {.queries = {0, S, 2 * S},
                 .keys = {.first = S}};  // a ring's queries in two runs, of which the second sees all keys
  const auto pairs = kernels::library_pairs(block);
  ASSERT_TRUE(pairs);
  ASSERT_EQ(pairs->first_query, S);
  EXPECT_EQ(planned(block), rounded(8 * (S * hd * 4 + S * 4 + S * 2 * hd * 2 + S * 4)));
}

// Two runs of queries that see different keys, some of them shared, are not one rectangle.
TEST(AttentionPath, CuDnnTakesOneRectangleOfPairs) {
  PlannedGpu gpu;
  auto in = gpu.inputs(512, 4, 2, 64);
  in.block = {.queries = {256, 256, 768}, .keys = {0, 256, 512}};
  EXPECT_FALSE(kernels::library_pairs(in));
  EXPECT_EQ(kernels::attention_path(in, true).own, OwnAttention::block);
  in.block.queries = {768, 256, 1024};  // after all keys
  ASSERT_TRUE(kernels::library_pairs(in));
  EXPECT_EQ(kernels::library_pairs(in)->keys, 512);
}

// The score gradients in bfloat16 take 1 GiB for 8 heads of 8192 tokens, and a little more than 2 GiB for 11,648.
TEST(AttentionPath, DeterministicBackwardHasAMemoryLimit) {
  PlannedGpu gpu;
  const auto own = [&](int64_t S) {
    auto in = gpu.inputs(S, 8, 1, 128);
    in.hints.repeatable = true;
    return kernels::attention_path(in, true).own;
  };
  EXPECT_EQ(own(8192), OwnAttention::no);
  EXPECT_EQ(own(11264), OwnAttention::no);
  EXPECT_EQ(own(11648), OwnAttention::workspace);
}

TEST(AttentionPath, CountsSlowPathsByReason) {
  PlannedGpu gpu;
  auto in = gpu.inputs(256, 4, 2, 64);
  const auto own = [](const kernels::AttentionInputs& of) { return kernels::attention_path(of, true).own; };
  EXPECT_EQ(own(in), OwnAttention::no);
  in.sequence_ids = gpu.tensor({1, 256}, DType::i32);
  EXPECT_EQ(own(in), OwnAttention::documents);
  in.hints.one_sequence_per_row = true;
  EXPECT_EQ(own(in), OwnAttention::no);
  in.dropout.p = 0.1;
  EXPECT_EQ(own(in), OwnAttention::dropout);
  gpu.backward(in);
  const auto costs = gpu.stream.costs().at("other");
  EXPECT_TRUE(costs.contains("attention_backward:dropout")) << costs.begin()->first;
  EXPECT_NE(kernels::slow_path("attention_backward:dropout").find("attention_dropout is not 0"), std::string::npos);
  EXPECT_EQ(kernels::slow_path("attention_backward"), "");

  EXPECT_EQ(own(gpu.inputs(256, 4, 2, 256)), OwnAttention::no);
  EXPECT_EQ(own(gpu.inputs(256, 4, 2, 264)), OwnAttention::head_size);
  EXPECT_EQ(own(gpu.inputs(256, 4, 2, 64, DType::f32)), OwnAttention::suited) << "no library computes it";
  EXPECT_EQ(own(gpu.inputs(32, 4, 2, 64)), OwnAttention::suited) << "too short for a library to be faster";

  auto repeatable = gpu.inputs(4096, 8, 1, 128);
  repeatable.hints.repeatable = true;
  EXPECT_EQ(own(repeatable), OwnAttention::no);
  repeatable = gpu.inputs(65536, 8, 1, 128);
  repeatable.hints.repeatable = true;
  EXPECT_EQ(own(repeatable), OwnAttention::workspace);
}

}  // namespace
}  // namespace witan
