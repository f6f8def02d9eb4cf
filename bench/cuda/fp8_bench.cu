// Products in e4m3 on a GPU and their quantisation: for the experts and the dense matrices of Mixtral 8x7B and
// Qwen3-30B-A3B with 16,384 tokens, compares every quantisation with a copy, and every product with the same one in
// bfloat16 and with itself in narrower tiles, which must give the same bits. Limits are from the data sheet: 1,979
// TFLOP/s in e4m3 and 4.8 TB/s memory bandwidth of an H200 (H100: 3.35). Operands are random, since data that toggles
// fewer bits runs faster than in training.
//   cuda_fp8_bench [text that lines must contain]
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/fp8/cuda/fp8_gemm_hopper.cuh"
#include "witan/kernels/fp8/fp8.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/timing.h"

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
// 128 x 128 blocks, in pairs that share columns.
template <class Scales>
using Tile128 = hopper::Fp8Shape<128, hopper::Multicast::b, Scales::kStaged, kernels::Fp8Format::e4m3>;

double size_of_all(int64_t numbers) {
  return static_cast<double>(numbers);
}

// E matrices w [N, K] for so many rows, evenly distributed, with `topk` rows per token; E = 0: one matrix, without
// groups.
struct Matrices {
  std::string name;
  int64_t rows, E, topk, N, K;

  int64_t experts() const { return std::max<int64_t>(E, 1); }
  double flops() const { return 2 * size_of_all(rows) * size_of_all(N) * size_of_all(K); }
  double weights() const { return size_of_all(experts() * N * K); }
  std::string line(const std::string& what) const {
    return cat(name, ", ", experts(), " x [", N, ", ", K, "]: ", what);
  }
};

// x [rows, K], dy [rows, N] and w, in bfloat16 and in e4m3.
struct Operands {
  Tensor x, dy, w;
  RowGroups groups;
  Fp8RowBlocks blocks;
  Fp8Rows x_rows, dy_rows;
  Fp8Columns x_columns, dy_columns;
  Fp8Weights plain, turned;
};
struct Results {
  Tensor y, dx, dw;
};

class Bench {
 public:
  Bench(Stream& stream, std::string_view wanted) : stream_(stream), wanted_(wanted) {}

  void matrices(const Matrices& m) {
    const Operands o = operands(m);
    const Results results = empty(m), again = empty(m);
    quantised(m, o, results);
    products(m, o, results);
    narrow_products(m, o, again);
    expect_same(m.line("y"), results.y, again.y);
    expect_same(m.line("dw"), results.dw, again.dw);
    bfloat16_products(m, o, again);
  }

  // SwiGLU of h [rows, 2F], writing its result only in e4m3.
  void activations(const std::string& name, int64_t rows, int64_t E, int64_t F) {
    const RowGroups groups = even(rows, E);
    const Fp8RowBlocks blocks = Fp8RowBlocks::empty(stream_, groups, rows);
    kernels::fp8_row_blocks(stream_, blocks, groups);
    const Tensor h = normal({rows, 2 * F}), dy = normal({rows, F});
    const Fp8Rows out = Fp8Rows::empty(stream_, rows, F), dh = Fp8Rows::empty(stream_, rows, 2 * F);
    const Fp8Columns out_columns = Fp8Columns::empty(stream_, blocks, F),
                     dh_columns = Fp8Columns::empty(stream_, blocks, 2 * F);
    run(name + ": SwiGLU by rows and columns", 0, 6 * size_of_all(rows * F),
        [&] { kernels::fp8_quantise_swiglu(stream_, out, out_columns, h, {}, groups, blocks); });
    run(name + ": its gradient by rows and columns", 0, 10 * size_of_all(rows * F), [&] {
      kernels::fp8_quantise_swiglu_backward(stream_, dh, dh_columns, {{}, dy, h, {}}, groups, blocks);
    });
  }

 private:
  Operands operands(const Matrices& m) {
    const RowGroups groups = m.E > 0 ? even(m.rows, m.E) : RowGroups{};
    const Fp8RowBlocks blocks = Fp8RowBlocks::empty(stream_, groups, m.rows);
    const Tensor w = normal({m.experts(), m.N, m.K});
    const auto scales = [&] { return stream_.empty({m.experts(), fp8_blocks(m.N), fp8_blocks(m.K)}, DType::f32); };
    return {normal({m.rows, m.K}),
            normal({m.rows, m.N}),
            w,
            groups,
            blocks,
            Fp8Rows::empty(stream_, m.rows, m.K),
            Fp8Rows::empty(stream_, m.rows, m.N),
            Fp8Columns::empty(stream_, blocks, m.K),
            Fp8Columns::empty(stream_, blocks, m.N),
            {stream_.empty({m.experts(), m.N, m.K}, DType::f8), {}, scales()},
            {{}, stream_.empty({m.experts(), m.K, m.N}, DType::f8), scales()}};
  }
  Results empty(const Matrices& m) {
    return {stream_.empty({m.rows, m.N}, DType::bf16), stream_.empty({m.rows, m.K}, DType::bf16),
            stream_.empty({m.experts(), m.N, m.K}, DType::f32)};
  }

  void quantised(const Matrices& m, const Operands& o, const Results& to) {
    const double of_x = size_of_all(m.rows * m.K), of_dy = size_of_all(m.rows * m.N);
    run(m.line("blocks"), 0, 0, [&] { kernels::fp8_row_blocks(stream_, o.blocks, o.groups); });
    run(m.line("copy of dy"), 0, 4 * of_dy, [&] { stream_.copy(to.y, o.dy); });
    if (m.topk > 1) {
      const RowIndex tokens{shuffled(m.rows), m.topk};
      const Tensor x = normal({m.rows / m.topk, m.K});
      run(m.line("x of tokens by rows"), 0, 3 * of_x,
          [&] { kernels::fp8_quantise(stream_, o.x_rows, {}, x, o.blocks, {tokens}); });
      run(m.line("x of tokens by columns"), 0, 3 * of_x,
          [&] { kernels::fp8_quantise(stream_, {}, o.x_columns, x, o.blocks, {tokens}); });
    }
    run(m.line("x by rows and columns"), 0, 4 * of_x,
        [&] { kernels::fp8_quantise(stream_, o.x_rows, o.x_columns, o.x, o.blocks); });
    run(m.line("x by rows"), 0, 3 * of_x, [&] { kernels::fp8_quantise(stream_, o.x_rows, {}, o.x, o.blocks); });
    run(m.line("dy by rows and columns"), 0, 4 * of_dy,
        [&] { kernels::fp8_quantise(stream_, o.dy_rows, o.dy_columns, o.dy, o.blocks); });
    run(m.line("w"), 0, 3 * m.weights(), [&] { kernels::fp8_quantise_weights(stream_, o.plain, o.w); });
    run(m.line("w transposed"), 0, 3 * m.weights(), [&] { kernels::fp8_quantise_weights(stream_, o.turned, o.w); });
  }

  double y_bytes(const Matrices& m) { return size_of_all(m.rows * (m.K + 2 * m.N)) + m.weights(); }
  double dx_bytes(const Matrices& m) { return size_of_all(m.rows * (m.N + 2 * m.K)) + m.weights(); }
  double dw_bytes(const Matrices& m) { return size_of_all(m.rows * (m.N + m.K)) + 4 * m.weights(); }

  void products(const Matrices& m, const Operands& o, const Results& to) {
    run(m.line("y"), m.flops(), y_bytes(m), [&] {
      kernels::fp8_product(stream_, to.y, {o.x_rows, o.plain}, o.groups);
    });
    run(m.line("dx"), m.flops(), dx_bytes(m), [&] {
      kernels::fp8_product(stream_, to.dx, {o.dy_rows, o.turned, true}, o.groups);
    });
    run(m.line("dw"), m.flops(), dw_bytes(m), [&] {
      kernels::fp8_weight_gradient(stream_, to.dw, Write::overwrite, o.dy_columns, o.x_columns, o.blocks.groups);
    });
  }
  void narrow_products(const Matrices& m, const Operands& o, const Results& to) {
    run(m.line("y, tiles of 128 x 128"), m.flops(), y_bytes(m), [&] {
      hopper::launch_fp8_product<Tile128<hopper::RowScales>>(stream_, to.y, {o.x_rows, o.plain}, o.groups);
    });
    run(m.line("dw, tiles of 128 x 128"), m.flops(), dw_bytes(m), [&] {
      hopper::launch_fp8_weight_gradient<Tile128<hopper::ColumnScales>, hopper::BulkStore<false, 64>>(
          stream_, to.dw, o.dy_columns, o.x_columns, o.blocks.groups);
    });
  }
  void bfloat16_products(const Matrices& m, const Operands& o, const Results& to) {
    const double row_bytes = 2 * size_of_all(m.rows * (m.N + m.K));
    const Tensor matrix = o.w.reshape({m.experts() * m.N, m.K});
    run(m.line("y in bfloat16"), m.flops(), row_bytes + 2 * m.weights(), [&] {
      if (m.E > 0) return kernels::grouped_gemm_forward(stream_, to.y, o.x, o.groups, o.w);
      kernels::gemm(stream_, to.y, Write::overwrite, o.x, Transpose::no, matrix, Transpose::yes);
    });
    run(m.line("dx in bfloat16"), m.flops(), row_bytes + 2 * m.weights(), [&] {
      if (m.E > 0) return kernels::grouped_gemm_backward_input(stream_, to.dx, o.dy, o.groups, o.w);
      kernels::gemm(stream_, to.dx, Write::overwrite, o.dy, Transpose::no, matrix, Transpose::no);
    });
    run(m.line("dw in bfloat16"), m.flops(), row_bytes + 4 * m.weights(), [&] {
      if (m.E > 0)
        return kernels::grouped_gemm_backward_weight(stream_, {to.dw, Write::overwrite}, o.dy, o.x, o.groups);
      kernels::gemm(stream_, to.dw.reshape({m.N, m.K}), Write::overwrite, o.dy, Transpose::yes, o.x, Transpose::no);
    });
  }

  Tensor normal(const Shape& shape) {
    Tensor out = stream_.empty(shape, DType::bf16);
    fill_normal(stream_, out, ++seed_);
    return out;
  }
  // Each assignment once, with those of a token far apart.
  Tensor shuffled(int64_t rows) {
    std::vector<int64_t> index;
    for (int64_t i = 0; i < rows; ++i) index.push_back(i * 40503 % rows);  // rows is a power of two
    const Tensor out = stream_.empty({rows}, DType::i64);
    stream_.write(out, index.data());
    return out;
  }
  RowGroups even(int64_t rows, int64_t experts) {
    std::vector<int64_t> begin, count(static_cast<size_t>(experts), rows / experts);
    for (int64_t e = 0; e < experts; ++e) begin.push_back(e * (rows / experts));
    RowGroups groups{stream_.empty({experts}, DType::i64), stream_.empty({experts}, DType::i64)};
    stream_.write(groups.begin, begin.data());
    stream_.write(groups.count, count.data());
    return groups;
  }
  // Compares the last elements bit by bit.
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
    const bool needed = line.find(" in bfloat16") == std::string::npos;  // operands of others, or compared with them
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
  bench.matrices({"Mixtral gate and up", 32768, 8, 2, 28672, 4096});
  bench.activations("Mixtral", 32768, 8, 14336);
  bench.matrices({"Mixtral down", 32768, 8, 1, 4096, 14336});
  bench.matrices({"Qwen3 gate and up", 131072, 128, 8, 1536, 2048});
  bench.activations("Qwen3", 131072, 128, 768);
  bench.matrices({"Qwen3 down", 131072, 128, 1, 2048, 768});
  bench.matrices({"Mixtral o_proj", 16384, 0, 1, 4096, 4096});
  bench.matrices({"Qwen3 q_proj", 16384, 0, 1, 4096, 2048});
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
