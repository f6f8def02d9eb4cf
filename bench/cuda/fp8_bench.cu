// Products in e4m3 on a GPU, and what they take besides: for the experts and the dense matrices of Mixtral 8x7B and of
// Qwen3-30B-A3B, of 16,384 tokens, every quantisation beside a copy and every product beside the same one in bfloat16,
// and beside itself in narrower tiles, which must give the same bits. Floors are those of a data sheet: 1,979 TFLOP/s
// of e4m3 and 4.8 TB/s of an H200's memory (an H100's is 3.35). Random operands: what switches fewer bits runs faster
// than any training.
//   cuda_fp8_bench [text that lines must contain]
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/threads.h"
#include "witan/kernels/cuda/fp8/fp8_gemm_hopper.cuh"
#include "witan/kernels/fp8.h"
#include "witan/kernels/gemm.h"
#include "witan/kernels/grouped_gemm.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/random.h"

namespace witan {
namespace {

using kernels::fp8_blocks;
using kernels::Fp8Columns;
using kernels::Fp8RowBlocks;
using kernels::Fp8Rows;
using kernels::Fp8Weights;
using kernels::Transpose;

namespace hopper = kernels::cuda;

constexpr double kPeakFlops = 1979e12, kPeakBytes = 4.8e12;
// 128 x 128, of which two blocks share the columns.
template <class Scales>
using Tile128 = hopper::Fp8Shape<128, hopper::Multicast::b, Scales::kStaged>;

class Bench {
 public:
  Bench(Stream& stream, std::string_view wanted) : stream_(stream), wanted_(wanted) {}

  // E matrices w [N, K] for so many rows, evenly spread; E = 0: one matrix, without groups.
  void matrices(const std::string& name, int64_t rows, int64_t E, int64_t N, int64_t K) {
    const RowGroups groups = E > 0 ? even(rows, E) : RowGroups{};
    const int64_t experts = std::max<int64_t>(E, 1);
    const Tensor x = normal({rows, K}), dy = normal({rows, N}), w = normal({experts, N, K});
    const Tensor y = stream_.empty({rows, N}, DType::bf16), dx = stream_.empty({rows, K}, DType::bf16),
                 dw = stream_.empty({experts, N, K}, DType::f32);
    const Fp8RowBlocks blocks = Fp8RowBlocks::empty(stream_, groups, rows);
    const Fp8Rows x_rows = Fp8Rows::empty(stream_, rows, K), dy_rows = Fp8Rows::empty(stream_, rows, N);
    const Fp8Columns x_columns = Fp8Columns::empty(stream_, blocks, K),
                     dy_columns = Fp8Columns::empty(stream_, blocks, N);
    const Fp8Weights plain{stream_.empty({experts, N, K}, DType::f8), {}, scales(w)},
        turned{{}, stream_.empty({experts, K, N}, DType::f8), scales(w)};
    const auto size = [](int64_t numbers) { return static_cast<double>(numbers); };
    const double product = 2 * size(rows) * size(N) * size(K), of_w = size(w.elements());
    const std::string shape = cat(name, ", ", experts, " x [", N, ", ", K, "]: ");
    run(shape + "blocks", 0, 0, [&] { kernels::fp8_row_blocks(stream_, blocks, groups); });
    run(shape + "copy of dy", 0, 4 * size(rows * N), [&] { stream_.copy(y, dy); });
    run(shape + "x by rows and columns", 0, 4 * size(rows * K),
        [&] { kernels::fp8_quantise(stream_, x_rows, x_columns, x, blocks); });
    run(shape + "x by rows", 0, 3 * size(rows * K), [&] { kernels::fp8_quantise(stream_, x_rows, {}, x, blocks); });
    run(shape + "dy by rows and columns", 0, 4 * size(rows * N),
        [&] { kernels::fp8_quantise(stream_, dy_rows, dy_columns, dy, blocks); });
    run(shape + "w", 0, 3 * of_w, [&] { kernels::fp8_quantise_weights(stream_, plain, w); });
    run(shape + "w transposed", 0, 3 * of_w, [&] { kernels::fp8_quantise_weights(stream_, turned, w); });
    const double y_bytes = size(rows) * size(K + 2 * N) + of_w, dx_bytes = size(rows) * size(N + 2 * K) + of_w,
                 dw_bytes = size(rows) * size(N + K) + 4 * of_w;
    run(shape + "y", product, y_bytes, [&] { kernels::fp8_product(stream_, y, {x_rows, plain}, groups); });
    run(shape + "dx", product, dx_bytes, [&] { kernels::fp8_product(stream_, dx, {dy_rows, turned, true}, groups); });
    run(shape + "dw", product, dw_bytes,
        [&] { kernels::fp8_weight_gradient(stream_, dw, Write::overwrite, dy_columns, x_columns, blocks.groups); });
    const Tensor y_again = stream_.empty(y.shape(), y.dtype()), dw_again = stream_.empty(dw.shape(), dw.dtype());
    run(shape + "y, tiles of 128 x 128", product, y_bytes, [&] {
      hopper::launch_fp8_product<Tile128<hopper::RowScales>>(stream_, y_again, {x_rows, plain}, groups);
    });
    run(shape + "dw, tiles of 128 x 128", product, dw_bytes, [&] {
      hopper::launch_fp8_weight_gradient<Tile128<hopper::ColumnScales>, hopper::BulkStore<false, 64>>(
          stream_, dw_again, dy_columns, x_columns, blocks.groups);
    });
    expect_same(shape + "y", y, y_again);
    expect_same(shape + "dw", dw, dw_again);
    const double row_bytes = 2 * size(rows) * size(N + K);
    run(shape + "y in bfloat16", product, row_bytes + 2 * of_w, [&] {
      if (E > 0) return kernels::grouped_gemm_forward(stream_, y, x, groups, w);
      kernels::gemm(stream_, y, Write::overwrite, x, Transpose::no, w.reshape({N, K}), Transpose::yes);
    });
    run(shape + "dx in bfloat16", product, row_bytes + 2 * of_w, [&] {
      if (E > 0) return kernels::grouped_gemm_backward_input(stream_, dx, dy, groups, w);
      kernels::gemm(stream_, dx, Write::overwrite, dy, Transpose::no, w.reshape({N, K}), Transpose::no);
    });
    run(shape + "dw in bfloat16", product, row_bytes + 4 * of_w, [&] {
      if (E > 0) return kernels::grouped_gemm_backward_weight(stream_, dw, Write::overwrite, dy, x, groups);
      kernels::gemm(stream_, dw.reshape({N, K}), Write::overwrite, dy, Transpose::yes, x, Transpose::no);
    });
  }

 private:
  Tensor normal(const Shape& shape) {
    Tensor out = stream_.empty(shape, DType::bf16);
    fill_normal(stream_, out, ++seed_);
    return out;
  }
  Tensor scales(const Tensor& w) {
    return stream_.empty({w.size(0), fp8_blocks(w.size(1)), fp8_blocks(w.size(2))}, DType::f32);
  }
  RowGroups even(int64_t rows, int64_t experts) {
    std::vector<int64_t> begin, count(static_cast<size_t>(experts), rows / experts);
    for (int64_t e = 0; e < experts; ++e) begin.push_back(e * (rows / experts));
    RowGroups groups{stream_.empty({experts}, DType::i64), stream_.empty({experts}, DType::i64)};
    stream_.write(groups.begin, begin.data());
    stream_.write(groups.count, count.data());
    return groups;
  }
  // Their last elements, to the bit.
  void expect_same(const std::string& line, const Tensor& a, const Tensor& b) {
    const int64_t elements = a.elements(), last = std::min(elements, int64_t{1} << 23);
    const auto read = [&](const Tensor& tensor) {
      const Tensor part = tensor.reshape({elements}).narrow(0, elements - last, last);
      std::vector<uint8_t> bytes(static_cast<size_t>(part.bytes()));
      stream_.read(bytes.data(), part);
      return bytes;
    };
    if (read(a) != read(b)) std::printf("%s: tiles of two shapes give different bits\n", line.c_str());
  }
  void run(const std::string& line, double flops, double bytes, const std::function<void()>& call) {
    const bool needed = line.find(" in bfloat16") == std::string::npos;  // operands of the others, or compared
    if (line.find(wanted_) == std::string::npos) {
      if (needed) call();
      return;
    }
    constexpr int kCalls = 12;
    std::vector<double> seconds = cuda::time_calls(*stream_.queue(), kCalls, call);
    std::nth_element(seconds.begin(), seconds.begin() + kCalls / 2, seconds.end());
    const double median = seconds[kCalls / 2], floor = std::max(flops / kPeakFlops, bytes / kPeakBytes);
    std::printf("%-72s %8.3f ms %7.1f TFLOP/s %5.2f TB/s %5.2f of the floor\n", line.c_str(), median * 1e3,
                flops / median * 1e-12, bytes / median * 1e-12, floor / median);
    std::fflush(stdout);
  }

  Stream& stream_;
  const std::string_view wanted_;
  uint64_t seed_ = 0;
};

void run(std::string_view wanted) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{40} << 30), pool);
  std::printf("%s\n", cuda::properties(0).name.c_str());
  Bench bench(stream, wanted);
  bench.matrices("Mixtral gate and up", 32768, 8, 28672, 4096);
  bench.matrices("Mixtral down", 32768, 8, 4096, 14336);
  bench.matrices("Qwen3 gate and up", 131072, 128, 1536, 2048);
  bench.matrices("Qwen3 down", 131072, 128, 2048, 768);
  bench.matrices("Mixtral o_proj", 16384, 0, 4096, 4096);
  bench.matrices("Qwen3 q_proj", 16384, 0, 4096, 2048);
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  if (witan::cuda::devices() == 0) {
    std::fprintf(stderr, "%s\n", witan::cuda::why_none().c_str());
    return static_cast<int>(witan::ExitCode::device);
  }
  witan::run(argc > 1 ? argv[1] : "");
}
