#include "witan/kernels/attention/sequence_pieces.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using kernels::PieceLayout;
using kernels::PieceSize;
using testing::CudaTest;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

struct Case {
  int64_t B, chunk, heads, w;
  int ranks;
};
// Positions in whole packs, in words, in neither; one head for all ranks; more units than a block has.
const std::vector<Case> kCases = {{3, 2, 4, 5, 2},      {2, 3, 3, 7, 3}, {1, 65, 4, 33, 4}, {2, 2, 1, 3, 4},
                                  {2, 3, 2, 8, 4},      {0, 2, 2, 4, 2}, {2, 0, 2, 4, 2},   {2, 129, 4, 64, 2},
                                  {1, 1000, 8, 128, 4}, {2, 7, 4, 2, 4}, {1, 1, 1, 1, 2}};

using SequencePiecesOnGpu = CudaTest;

// Moves three tensors of heads into a message, and from there into tensors of positions, as the CPU does.
TEST_F(SequencePiecesOnGpu, ArriveInTheirPlaces) {
  for (const auto& [B, C, P, w, n] : kCases)
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(cat("B=", B, " chunk=", C, " heads=", P, " w=", w, " ranks=", n, " ", dtype));
      const int64_t Q = std::max<int64_t>(P / n, 1);
      const int64_t widths[] = {w, 2 * w, w + 1};
      std::vector<kernels::PieceCopy> on_cpu, on_gpu, out_on_cpu, out_on_gpu;
      int64_t elements = 0;
      for (const int64_t width : widths) elements += B * 2 * C * Q * width;
      const Tensor message = host.poisoned({n * elements}, dtype), message_gpu = poisoned({n * elements}, dtype);
      int64_t before = 0;
      for (size_t i = 0; i < 3; ++i) {
        const Tensor x = host.normal({B, 2 * C, P, widths[i]}, dtype, cat("x", i));
        const PieceSize size{B, C, Q * widths[i]};
        const PieceLayout packed = kernels::pieces_of_message(size, elements, before);
        before += size.elements();
        on_cpu.push_back({message, x, packed, kernels::pieces_by_heads(x, n), size});
        on_gpu.push_back({message_gpu, to_gpu(x), packed, kernels::pieces_by_heads(x, n), size});
        const Shape whole{B, 2 * n * C, Q, widths[i]};
        const Tensor y = host.poisoned(whole, dtype), y_gpu = poisoned(whole, dtype);
        out_on_cpu.push_back({y, message, kernels::pieces_by_positions(y, n), packed, size});
        out_on_gpu.push_back({y_gpu, message_gpu, kernels::pieces_by_positions(y, n), packed, size});
      }
      kernels::copy_pieces(host.stream, on_cpu, n);
      kernels::copy_pieces(gpu(), on_gpu, n);
      EXPECT_TRUE(agree(message_gpu, message, 0, 0));
      kernels::copy_pieces(host.stream, out_on_cpu, n);
      kernels::copy_pieces(gpu(), out_on_gpu, n);
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(agree(out_on_gpu[i].to, out_on_cpu[i].to, 0, 0)) << i;
    }
}

// Sums in a fixed order have the same bits, also of some columns of a matrix, at any alignment.
TEST_F(SequencePiecesOnGpu, SumsOfSharesHaveTheCpusBits) {
  for (const auto& [R, P, N, w] : {std::array<int64_t, 4>{1, 1, 1, 1},
                                   {7, 3, 2, 5},
                                   {0, 2, 3, 2},
                                   {5, 1, 3, 0},
                                   {3000, 2, 4, 128},
                                   {33, 1, 8, 67},
                                   {40, 4, 2, 8}})
    for (const int64_t beside : {0, 1, 8})
      for (const DType dtype : kDTypes) {
        const Tensor x = host.normal({R, beside + P * N * w}, dtype, "x"),
                     expected = host.normal({R, beside + P * w}, dtype, "before"), y = to_gpu(expected);
        const auto columns = [&](const Tensor& of) { return of.narrow(1, beside, of.size(1) - beside); };
        kernels::sum_shares(host.stream, columns(expected), columns(x), w);
        kernels::sum_shares(gpu(), columns(y), columns(to_gpu(x)), w);
        EXPECT_TRUE(agree(y, expected, 0, 0))
            << R << " " << P << " " << N << " " << w << " beside " << beside << ", " << dtype;
      }
}

}  // namespace
}  // namespace witan
