#include "support/cuda_rank.h"
#include "witan/kernels/vocabulary/vocabulary.h"
#include "witan/tensor/cuda/stream.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::values;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

class Embeddings : public CudaTest {
 protected:
  // T ids in [0, V), most of them small, as in text.
  Tensor ids_of(int64_t T, int64_t V) {
    const Philox rng(7, Philox::stream_of("ids"));
    const Tensor ids = host.stream.empty({T}, DType::i32);
    for (int64_t t = 0; t < T; ++t) {
      const double u = rng.uniform(static_cast<uint64_t>(t));
      ids.data<int32_t>()[t] =
          static_cast<int32_t>(std::min(static_cast<double>(V - 1), u * u * u * static_cast<double>(V)));
    }
    return ids;
  }
  void expect_backward(const Tensor& ids, int64_t V, int64_t D, DType gradient, DType dtype, int64_t begin = 0) {
    const int64_t T = ids.elements();
    const Tensor dy = host.normal({T, D}, dtype, "dy"), dw = host.poisoned({V, D}, gradient),
                 dw_gpu = poisoned({V, D}, gradient);
    const Tensor ids_gpu = to_gpu(ids), dy_gpu = to_gpu(dy), again = poisoned({V, D}, gradient);
    for (const Write write : {Write::overwrite, Write::accumulate}) {
      kernels::embedding_backward(host.stream, dw, write, host.stream.empty({V + 1 + T}, DType::i32), dy, ids, begin);
      for (const Tensor& out : {dw_gpu, again})
        kernels::embedding_backward(gpu(), out, write, poisoned({V + 1 + T}, DType::i32), dy_gpu, ids_gpu, begin);
      EXPECT_TRUE(agree(dw_gpu, dw, 0, 0))
          << "T " << T << " V " << V << " D " << D << " " << dtype << " into " << gradient;
      EXPECT_EQ(values(to_host(dw_gpu)), values(to_host(again)));
    }
  }
};

TEST_F(Embeddings, ForwardTakesRows) {
  for (const DType dtype : kDTypes)
    for (const auto& [T, V, D] :
         {std::tuple<int64_t, int64_t, int64_t>{0, 5, 8}, {1, 1, 1}, {77, 300, 37}, {1000, 131, 512}}) {
      const Tensor ids = ids_of(T, V), w = host.normal({V, D}, dtype, "w"), expected = host.stream.empty({T, D}, dtype);
      kernels::embedding_forward(host.stream, expected, ids, w);
      const Tensor y = poisoned({T, D}, dtype);
      kernels::embedding_forward(gpu(), y, to_gpu(ids), to_gpu(w));
      EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << T;
    }
}

// Sums are formed in the CPU's order, so that they have its bits for any number of tokens per row.
TEST_F(Embeddings, BackwardSumsTokensInOrder) {
  for (const DType dtype : kDTypes)
    for (const DType gradient : kDTypes)
      for (const auto& [T, V, D] : {std::tuple<int64_t, int64_t, int64_t>{0, 5, 8},
                                    {1, 1, 1},
                                    {777, 30, 37},
                                    {6000, 131, 520},
                                    {500, 40000, 24}})
        if (has_gradients(dtype, gradient)) expect_backward(ids_of(T, V), V, D, gradient, dtype);
}

// Rows [begin, begin + n) of a table that is divided by rows; most tokens' rows are on other ranks, before or after.
TEST_F(Embeddings, PartsOfATable) {
  for (const DType dtype : kDTypes)
    for (const auto& [T, V, D, begin, n] : std::vector<std::array<int64_t, 5>>{{0, 5, 8, 2, 3},
                                                                               {77, 300, 37, 250, 50},
                                                                               {6000, 131, 520, 40, 50},
                                                                               {6000, 128, 64, 0, 64},
                                                                               {500, 40000, 24, 30000, 10000},
                                                                               {100, 10, 8, 10, 0}}) {
      SCOPED_TRACE(cat(dtype, " T ", T, " rows from ", begin));
      const Tensor ids = ids_of(T, V), w = host.normal({n, D}, dtype, "w"), y = host.stream.empty({T, D}, dtype);
      kernels::embedding_forward(host.stream, y, ids, w, begin);
      const Tensor on_gpu = poisoned({T, D}, dtype);
      kernels::embedding_forward(gpu(), on_gpu, to_gpu(ids), to_gpu(w), begin);
      EXPECT_TRUE(agree(on_gpu, y, 0, 0));
      for (const DType gradient : {DType::f32, dtype}) expect_backward(ids, n, D, gradient, dtype, begin);
    }
}

// So many rows that a warp writes several.
TEST_F(Embeddings, BackwardOfALargeTable) {
  for (const DType gradient : {DType::f32, DType::bf16})
    expect_backward(ids_of(3000, 131077), 131077, 8, gradient, DType::bf16);
}

TEST_F(Embeddings, BackwardOfOneIdAlone) {
  for (const int64_t T : {63, 64, 65, 127, 128, 1000})
    for (const int32_t id : {0, 1, 2}) {
      const Tensor ids = host.stream.empty({T}, DType::i32);
      std::ranges::fill(ids.span<int32_t>(), id);
      expect_backward(ids, 3, 16, DType::f32, DType::bf16);
    }
}

// A captured step is replayed with other tokens: nothing in the sort may depend on the tokens at capture.
TEST_F(Embeddings, BackwardIsReplayedWithOtherTokens) {
  constexpr int64_t T = 5000, V = 400, D = 64;
  const Tensor order = poisoned({V + 1 + T}, DType::i32), dw = poisoned({V, D}, DType::f32);
  const Tensor dy = host.normal({T, D}, DType::bf16, "dy"), dy_gpu = to_gpu(dy);
  const Tensor ids = host.stream.empty({T}, DType::i32);
  std::ranges::fill(ids.span<int32_t>(), 7);
  const Tensor ids_gpu = to_gpu(ids);
  const cudaStream_t stream = cuda::native(gpu());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  kernels::embedding_backward(gpu(), dw, Write::overwrite, order, dy_gpu, ids_gpu);  // loads code, as a first step does
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  kernels::embedding_backward(gpu(), dw, Write::overwrite, order, dy_gpu, ids_gpu);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  const Tensor others = ids_of(T, V), expected = host.poisoned({V, D}, DType::f32);
  gpu().write(ids_gpu, others.raw());
  ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
  kernels::embedding_backward(host.stream, expected, Write::overwrite, host.stream.empty({V + 1 + T}, DType::i32), dy,
                              others);
  EXPECT_TRUE(agree(dw, expected, 0, 0));
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace witan
