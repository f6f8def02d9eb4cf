#include "support/cuda_rank.h"
#include "witan/kernels/attention/heads.h"

namespace witan {
namespace {

using testing::values;

class HeadNormsOnGpu : public testing::CudaTest {
 protected:
  struct Case {
    int64_t B, S, H, G, hd;
    kernels::RopeArgs rope;
  };
  // Queries or keys, on both devices.
  struct Side {
    Tensor x, w, dy, y, r, dx, dw;
  };
  Side on_host(const Case& c, int64_t heads, DType dtype, DType gradient, const std::string& name) {
    const Shape shape{c.B, c.S, heads, c.hd};
    return {host.normal(shape, dtype, name),
            host.normal({c.hd}, dtype, "w" + name),
            host.normal(shape, dtype, "dy" + name),
            host.poisoned(shape, dtype),
            host.poisoned({c.B * c.S * heads}, accumulator(dtype)),
            host.poisoned(shape, dtype),
            host.poisoned({c.hd}, gradient)};
  }
  Side on_gpu(const Side& s) {
    return {to_gpu(s.x),
            to_gpu(s.w),
            to_gpu(s.dy),
            poisoned(s.y.shape(), s.y.dtype()),
            poisoned(s.r.shape(), s.r.dtype()),
            poisoned(s.dx.shape(), s.dx.dtype()),
            poisoned(s.dw.shape(), s.dw.dtype())};
  }
  void compare(const Side& seen, const Side& cpu, const Side& again) {
    const DType dtype = cpu.x.dtype();
    const double allowed = tolerance(dtype), of_r = 100 * tolerance(accumulator(dtype)),
                 of_sums = 200 * std::max(tolerance(cpu.dw.dtype()), allowed);
    EXPECT_TRUE(agree(seen.y, cpu.y, 4 * allowed, 4 * allowed)) << "y";
    EXPECT_TRUE(agree(seen.r, cpu.r, of_r, of_r)) << "r";
    EXPECT_TRUE(agree(seen.dx, cpu.dx, 20 * allowed, 20 * allowed)) << "dx";
    EXPECT_TRUE(agree(seen.dw, cpu.dw, of_sums, of_sums)) << "dw";
    EXPECT_EQ(values(to_host(seen.dx)), values(to_host(again.dx)));
    EXPECT_EQ(values(to_host(seen.dw)), values(to_host(again.dw)));
  }
  // The weight of keys is centred at zero.
  static void run(Stream& stream, const Side& q, const Side& k, const Tensor& table, const kernels::RopeArgs& rope,
                  Write write) {
    kernels::head_norms_forward(stream, {q.y, q.r, q.x, q.w}, {k.y, k.r, k.x, {k.w, true}}, table, rope, 1e-5);
    kernels::head_norms_backward(stream, {q.dx, q.dw, write, q.dy, q.x, q.w, q.r},
                                 {k.dx, k.dw, write, k.dy, k.x, {k.w, true}, k.r}, table, rope);
  }
};

// Heads with every number of channels per lane, in whole packs or not; one token, and more rows than strips.
TEST_F(HeadNormsOnGpu, AgreeWithTheCpuAndRepeat) {
  const std::vector<Case> cases = {{0, 8, 2, 1, 8, {}},
                                   {1, 1, 1, 1, 1, {}},
                                   {2, 5, 3, 1, 6, {.dims = 4}},
                                   {1, 7, 4, 2, 40, {.dims = 40}},
                                   {2, 33, 4, 2, 64, {.dims = 32, .interleaved = true}},
                                   {2, 300, 8, 2, 128, {.base = 1e6, .dims = 128}},
                                   {1, 9, 2, 2, 131, {.dims = 66}},
                                   {1, 17, 2, 1, 256, {.dims = 256, .interleaved = true}}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const DType gradient : {DType::f32, dtype})
      for (const Case& c : cases) {
        SCOPED_TRACE(cat(dtype, " B=", c.B, " S=", c.S, " H=", c.H, " G=", c.G, " hd=", c.hd, " R=", c.rope.dims));
        Tensor table, table_gpu;
        if (c.rope.dims > 0) {
          std::vector<int32_t> positions;
          for (int64_t i = 0; i < c.B * c.S; ++i) positions.push_back(static_cast<int32_t>(i % c.S));
          table = host.stream.empty({c.B * c.S, c.rope.dims}, accumulator(dtype));
          kernels::rotary_table(host.stream, table, host.tensor<int32_t>({c.B, c.S}, positions), c.rope);
          table_gpu = to_gpu(table);
        }
        const Side q = on_host(c, c.H, dtype, gradient, "q"), k = on_host(c, c.G, dtype, gradient, "k");
        const Side q_gpu = on_gpu(q), k_gpu = on_gpu(k), q_again = on_gpu(q), k_again = on_gpu(k);
        for (const Write write : {Write::overwrite, Write::accumulate}) {
          run(host.stream, q, k, table, c.rope, write);
          run(gpu(), q_gpu, k_gpu, table_gpu, c.rope, write);
          run(gpu(), q_again, k_again, table_gpu, c.rope, write);
        }
        compare(q_gpu, q, q_again);
        compare(k_gpu, k, k_again);
      }
}

}  // namespace
}  // namespace witan
