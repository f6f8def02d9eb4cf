#include "witan/kernels/vocabulary/cuda/likeliest.cuh"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A warp per row.
__global__ void __launch_bounds__(kThreads) likeliest_kernel(int32_t* ids, const Key* keys, int rows, int pieces) {
  wait_for_earlier();
  let_next_begin();
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const Key best = likeliest_of(keys + row * pieces, pieces);
  if (threadIdx.x % 32 == 0) ids[row] = id_of(best);
}

}  // namespace

void likeliest_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, int64_t words) {
  if (ids.elements() == 0) return;
  constexpr int64_t kRows = kThreads / 32;
  const auto rows = static_cast<int>(ids.elements()), pieces = pieces_of(words);
  auto* const keys = reinterpret_cast<Key*>(stream.scratch(int64_t{rows} * pieces * int64_t{sizeof(Key)}));
  dispatch_packs(logits, [&]<class T, int N>() {
    launch_early(stream, likeliest_of_pieces<T, N>, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(pieces)),
                 kPieceThreads, 0, keys, ptr<T>(logits), logits.size(1), static_cast<int>(words), nullptr);
  });
  launch_early(stream, likeliest_kernel, dim3(static_cast<unsigned>((rows + kRows - 1) / kRows)), kThreads, 0,
               ptr<int32_t>(ids), keys, rows, pieces);
}

}  // namespace witan::kernels::cuda
