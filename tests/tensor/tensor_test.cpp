#include "witan/tensor/tensor.h"

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

using test::message_of;
using testing::Rank;
using testing::values;
using Values = std::vector<double>;

Tensor counting(Rank& rank, const Shape& shape) {
  Tensor out = rank.stream.empty(shape, DType::i32);
  for (int64_t i = 0; i < out.elements(); ++i) out.data<int32_t>()[i] = static_cast<int32_t>(i);
  return out;
}

TEST(Tensor, IsContiguousAndCountsItsBytes) {
  Rank rank;
  const Tensor x = rank.stream.empty({2, 3, 4}, DType::bf16);
  EXPECT_TRUE(x.contiguous());
  EXPECT_EQ(x.bytes(), 48);
  EXPECT_EQ(x.stride(0), 12);
  EXPECT_EQ(x.stride(1), 4);
  EXPECT_EQ(x.stride(2), 1);
  EXPECT_FALSE(x.is_meta());
  EXPECT_FALSE(Tensor().defined());
  EXPECT_EQ(rank.stream.zeros({5}, DType::f64).to_vector<double>(), std::vector<double>(5, 0.0));
}

TEST(Tensor, HandlesScalarsAndEmptyTensors) {
  Rank rank;
  const Tensor scalar = rank.stream.zeros({}, DType::f32), nothing = rank.stream.empty({3, 0}, DType::f32);
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_TRUE(scalar.contiguous());
  EXPECT_EQ(nothing.elements(), 0);
  EXPECT_TRUE(nothing.span<float>().empty());
  EXPECT_TRUE(nothing.transpose(0, 1).contiguous());
}

TEST(Tensor, FreesStorageWithTheLastTensor) {
  Rank rank;
  Arena& arena = rank.stream.arena();
  Tensor x = rank.stream.empty({1024}, DType::f32, MemoryTag::weights);
  EXPECT_TRUE(x.unique());
  Tensor view = x.narrow(0, 1000, 1);
  EXPECT_FALSE(x.unique());
  x = {};
  EXPECT_TRUE(view.unique());
  EXPECT_EQ(arena.live(MemoryTag::weights), 4096) << "a view keeps the whole storage";
  view = {};
  EXPECT_EQ(arena.live(), 0);
}

TEST(Tensor, OutlivesItsStream) {
  Tensor x;
  {
    Rank rank;
    x = rank.tensor<float>({2}, {1, 2});
  }
  EXPECT_EQ(values(x), (Values{1, 2}));
}

TEST(Tensor, ReshapeKeepsTheElements) {
  Rank rank;
  const Tensor x = counting(rank, {2, 6}), y = x.reshape({3, 2, 2});
  EXPECT_EQ(y.raw(), x.raw());
  EXPECT_EQ(y.stride(0), 4);
  EXPECT_EQ(y.to_vector<int32_t>(), x.to_vector<int32_t>());
  EXPECT_EQ(message_of<ShapeError>([&] { x.reshape({5}); }), "cannot view [2, 6] as [5]");
  EXPECT_EQ(message_of<ShapeError>([&] { x.transpose(0, 1).reshape({12}); }),
            "cannot view [6, 2] as [12]: it is not contiguous");
}

TEST(Tensor, SelectDropsADim) {
  Rank rank;
  const Tensor x = counting(rank, {2, 3, 4}), matrix = x.select(1, 2), row = matrix.select(0, 1);
  EXPECT_EQ(matrix.shape(), Shape({2, 4}));
  EXPECT_EQ(matrix.stride(0), 12);
  EXPECT_EQ(row.to_vector<int32_t>(), (std::vector<int32_t>{20, 21, 22, 23}));
  EXPECT_THROW(x.select(1, 3), ShapeError);
}

TEST(Tensor, NarrowSelectsARange) {
  Rank rank;
  const Tensor x = counting(rank, {3, 4});
  const Tensor rows = x.narrow(0, 1, 2), columns = x.narrow(1, 1, 2), inner = rows.narrow(1, 2, 1).narrow(0, 1, 1);
  EXPECT_EQ(rows.to_vector<int32_t>(), (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(*columns.data<int32_t>(), 1);
  EXPECT_EQ(columns.stride(0), 4);
  EXPECT_EQ(*inner.data<int32_t>(), 10);
  EXPECT_TRUE(inner.contiguous()) << "a single element is always contiguous";
  EXPECT_EQ(x.narrow(0, 3, 0).elements(), 0);
  EXPECT_EQ(message_of<ShapeError>([&] { x.narrow(1, 3, 2); }), "cannot take [3, 5) of dim 1 of [3, 4]");
  EXPECT_THROW(x.narrow(2, 0, 1), ShapeError);
  EXPECT_THROW(x.narrow(0, -1, 1), ShapeError);
}

TEST(Tensor, TransposeSwapsDims) {
  Rank rank;
  const Tensor x = counting(rank, {2, 3, 4}), y = x.transpose(0, 2);
  EXPECT_EQ(y.shape(), (Shape{4, 3, 2}));
  EXPECT_EQ(y.stride(0), 1);
  EXPECT_EQ(y.stride(2), 12);
  EXPECT_FALSE(y.contiguous());
  EXPECT_TRUE(y.transpose(2, 0).contiguous());
  EXPECT_TRUE(counting(rank, {1, 5}).transpose(0, 1).contiguous()) << "a dim of size 1 may have any stride";
  EXPECT_EQ(message_of<ShapeError>([&] { x.transpose(0, 3); }), "no dims 0 and 3 in [2, 3, 4]");
}

TEST(Tensor, MetaAllocatesWithoutMemory) {
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  const Tensor x = meta.zeros({1 << 20, 1 << 20}, DType::f32);
  EXPECT_TRUE(x.is_meta());
  EXPECT_EQ(x.raw(), nullptr);
  EXPECT_EQ(x.narrow(0, 5, 1).raw(), nullptr);
  EXPECT_EQ(meta.arena().live(MemoryTag::activations), int64_t{1} << 42);
}

TEST(Stream, SumsCostsByPartAndKernel) {
  Rank rank;
  Stream& stream = rank.stream;
  stream.count("gemm", {10, 1});
  EXPECT_EQ(stream.set_part("attention"), "other");
  stream.count("gemm", {5, 2});
  stream.count("gemm", {5, 2});
  EXPECT_EQ(stream.set_part("other"), "attention");
  EXPECT_EQ(stream.costs().at("attention").at("gemm").flops, 10);
  EXPECT_EQ(stream.costs().at("attention").at("gemm").bytes, 4);
  EXPECT_EQ(stream.flops(), 20);
  EXPECT_EQ(stream.costs().at("attention").at("gemm").calls, 2);
  stream.reset_costs();
  EXPECT_EQ(stream.flops(), 0);
}

TEST(Stream, RecordsCallsByKind) {
  using Phase = TraceContext::Phase;
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  Stream side(stream, 512);
  CallCosts calls;
  stream.count("gemm", {1, 1});  // before recording begins
  stream.record_calls(&calls);
  stream.set_part("mlp");
  {
    const TraceContextScope forward(stream, Phase::forward, 3);
    forward->chunk = 1;
    stream.count("gemm", {10, 1}, {2, 3, 4, 1});
    stream.count("gemm", {10, 1}, {2, 3, 4, 1});
    stream.count("gemm", {20, 1}, {2, 3, 8, 1});
    side.count("norm", {1, 1});  // counted by the main stream once it has waited for the side stream
    side.count_exchange("replicate", "all_reduce", 64, 4);
  }
  stream.count_exchange("expert", "all_to_all", 32, 2);
  stream.record_calls(nullptr);
  stream.count("gemm", {1, 1});
  side.count_exchange("replicate", "all_reduce", 64, 4);
  ASSERT_EQ(calls.size(), 4U);
  const auto of = [&](const CallKind& kind) { return calls.contains(kind) ? calls.at(kind) : Cost{}; };
  const CallKind product{Phase::forward, 1, false, "mlp", {}, "gemm", {2, 3, 4, 1}};
  EXPECT_EQ(of(product).calls, 2);
  EXPECT_EQ(of(product).flops, 20);
  EXPECT_EQ(of({Phase::forward, 1, false, "mlp", {}, "gemm", {2, 3, 8, 1}}).flops, 20);
  EXPECT_EQ(of({Phase::forward, 1, true, {}, "replicate", "all_reduce", {64, 4}}).bytes, 64);
  EXPECT_EQ(of({Phase::none, 0, false, {}, "expert", "all_to_all", {32, 2}}).calls, 1);
}

}  // namespace
}  // namespace witan
