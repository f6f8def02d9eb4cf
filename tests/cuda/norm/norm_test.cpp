#include "witan/kernels/norm/norm.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::values;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr double kEps = 1e-5;

// No rows; one element; rows that are not whole packs; for each width from which more threads hold a row, one row less
// than full and one full; a row longer than a block holds; more than one strip of rows.
const Shape kShapes[] = {{0, 8},    {1, 1},    {3, 37},   {9, 504},  {8, 512},  {7, 1016},
                         {5, 2048}, {3, 2200}, {5, 8192}, {3, 9000}, {2, 9001}, {777, 136}};

class Norms : public CudaTest {
 protected:
  // Equal values on both devices.
  struct Pair {
    Tensor cpu, gpu;
  };
  Pair values_of(const Shape& shape, DType dtype, std::string_view name) {
    const Tensor cpu = host.normal(shape, dtype, name);
    return {cpu, to_gpu(cpu)};
  }
  Pair output(const Shape& shape, DType dtype) { return {host.poisoned(shape, dtype), poisoned(shape, dtype)}; }
  void expect_close(const Pair& pair, const char* what, double scale = 1) {
    const double allowed = scale * tolerance(pair.cpu.dtype());
    EXPECT_TRUE(agree(pair.gpu, pair.cpu, allowed, allowed)) << what << " " << pair.cpu.dtype() << pair.cpu.shape();
  }
};

TEST_F(Norms, RmsNormForward) {
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Pair x = values_of(shape, dtype, "x"), w = values_of({shape.last()}, dtype, "w");
      const Pair y = output(shape, dtype), r = output({shape[0]}, accumulator(dtype));
      kernels::rmsnorm_forward(host.stream, y.cpu, r.cpu, x.cpu, w.cpu, kEps);
      kernels::rmsnorm_forward(gpu(), y.gpu, r.gpu, x.gpu, w.gpu, kEps);
      expect_close(y, "y");
      expect_close(r, "r");
    }
}

TEST_F(Norms, AddRmsNormForward) {
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Pair a = values_of(shape, dtype, "a"), b = values_of(shape, dtype, "b"),
                 w = values_of({shape.last()}, dtype, "w");
      const Pair sum = output(shape, dtype), y = output(shape, dtype), r = output({shape[0]}, accumulator(dtype));
      kernels::add_rmsnorm_forward(host.stream, sum.cpu, y.cpu, r.cpu, a.cpu, b.cpu, w.cpu, kEps);
      kernels::add_rmsnorm_forward(gpu(), sum.gpu, y.gpu, r.gpu, a.gpu, b.gpu, w.gpu, kEps);
      EXPECT_TRUE(agree(sum.gpu, sum.cpu, 0, 0)) << dtype << shape;
      expect_close(y, "y");
      expect_close(r, "r");
      const Pair again = output(shape, dtype);
      kernels::add_rmsnorm_forward(gpu(), a.gpu, again.gpu, r.gpu, a.gpu, b.gpu, w.gpu, kEps);
      EXPECT_EQ(values(to_host(again.gpu)), values(to_host(y.gpu))) << "in place";
      EXPECT_EQ(values(to_host(a.gpu)), values(to_host(sum.gpu))) << "in place";
    }
}

TEST_F(Norms, RmsNormBackwardInput) {
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Pair x = values_of(shape, dtype, "x"), dy = values_of(shape, dtype, "dy"),
                 dsum = values_of(shape, dtype, "dsum"), w = values_of({shape.last()}, dtype, "w"),
                 r = values_of({shape[0]}, accumulator(dtype), "r");
      const Pair dx = output(shape, dtype), both = output(shape, dtype), alone = output(shape, dtype);
      kernels::rmsnorm_backward_input(host.stream, dx.cpu, dy.cpu, x.cpu, w.cpu, r.cpu);
      kernels::rmsnorm_backward_input(gpu(), dx.gpu, dy.gpu, x.gpu, w.gpu, r.gpu);
      expect_close(dx, "dx", 10);
      kernels::add_rmsnorm_backward_input(gpu(), alone.gpu, {}, dy.gpu, x.gpu, w.gpu, r.gpu);
      EXPECT_EQ(values(to_host(alone.gpu)), values(to_host(dx.gpu))) << "no gradient of the sum";
      kernels::add_rmsnorm_backward_input(host.stream, both.cpu, dsum.cpu, dy.cpu, x.cpu, w.cpu, r.cpu);
      kernels::add_rmsnorm_backward_input(gpu(), both.gpu, dsum.gpu, dy.gpu, x.gpu, w.gpu, r.gpu);
      expect_close(both, "dsum + dx", 10);
      kernels::add_rmsnorm_backward_input(gpu(), dsum.gpu, dsum.gpu, dy.gpu, x.gpu, w.gpu, r.gpu);
      EXPECT_EQ(values(to_host(dsum.gpu)), values(to_host(both.gpu))) << "in place";
    }
}

// dx and dw at once, into gradients of any dtype; two calls give the same bits.
TEST_F(Norms, RmsNormBackward) {
  for (const DType dtype : kDTypes)
    for (const DType gradient : kDTypes)
      for (const Shape& shape : kShapes)
        for (const bool adds : {false, true}) {
          if (!has_gradients(dtype, gradient)) continue;
          const Pair x = values_of(shape, dtype, "x"), dy = values_of(shape, dtype, "dy"),
                     w = values_of({shape.last()}, dtype, "w"), r = values_of({shape[0]}, accumulator(dtype), "r"),
                     dsum = adds ? values_of(shape, dtype, "dsum") : Pair();
          const Pair dx = output(shape, dtype), dw = output(w.cpu.shape(), gradient);
          const Tensor again = poisoned(w.cpu.shape(), gradient);
          for (const Write write : {Write::overwrite, Write::accumulate}) {
            kernels::rmsnorm_backward(host.stream, dx.cpu, dw.cpu, write, dsum.cpu, dy.cpu, x.cpu, w.cpu, r.cpu);
            kernels::rmsnorm_backward(gpu(), dx.gpu, dw.gpu, write, dsum.gpu, dy.gpu, x.gpu, w.gpu, r.gpu);
            expect_close(dx, "dx", 10);
            const double rounding = std::max(tolerance(gradient), tolerance(accumulator(dtype)));
            const double terms = std::sqrt(static_cast<double>(shape[0]) + 1);
            EXPECT_TRUE(agree(dw.gpu, dw.cpu, 2 * rounding * terms, rounding)) << dtype << gradient << shape;
            kernels::rmsnorm_backward(gpu(), adds ? dsum.gpu : dx.gpu, again, write, dsum.gpu, dy.gpu, x.gpu, w.gpu,
                                      r.gpu);
            if (adds) {
              EXPECT_EQ(values(to_host(dsum.gpu)), values(to_host(dx.gpu))) << "in place";
              gpu().write(dsum.gpu, dsum.cpu.raw());
            }
            EXPECT_EQ(values(to_host(again)), values(to_host(dw.gpu)));
          }
        }
}

TEST_F(Norms, WeightsCenteredAtZero) {
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Pair x = values_of(shape, dtype, "x"), dy = values_of(shape, dtype, "dy"),
                 w = values_of({shape.last()}, dtype, "w");
      const DType wide = accumulator(dtype);
      const Pair y = output(shape, dtype), dx = output(shape, dtype), dw = output(w.cpu.shape(), wide),
                 r = output({shape[0]}, wide), mean = output({shape[0]}, wide), sums = output({shape[0]}, wide);
      const auto run = [&](Stream& stream, const auto& of) {
        kernels::rmsnorm_forward(stream, of(y), of(r), of(x), {of(w), true}, kEps);
        kernels::rmsnorm_backward(stream, of(dx), of(dw), Write::overwrite, {}, of(dy), of(x), {of(w), true}, of(r));
      };
      run(host.stream, [](const Pair& pair) { return pair.cpu; });
      run(gpu(), [](const Pair& pair) { return pair.gpu; });
      expect_close(y, "y");
      expect_close(dx, "dx", 10);
      const auto normalise = [&](Stream& stream, const auto& of) {
        kernels::layernorm_forward(stream, of(y), of(mean), of(r), of(x), {of(w), true}, {}, kEps);
        kernels::layernorm_backward(stream, of(dx), {.dw = of(dw), .db = {}}, {}, of(dy), of(x), {of(w), true},
                                    of(mean), of(r));
      };
      normalise(host.stream, [](const Pair& pair) { return pair.cpu; });
      normalise(gpu(), [](const Pair& pair) { return pair.gpu; });
      expect_close(y, "layernorm's y");
      expect_close(dx, "layernorm's dx", 10);
      const auto shard = [&](Stream& stream, const auto& of) {
        kernels::sharded_rmsnorm_squares(stream, of(sums), of(x));
        kernels::sharded_rmsnorm_forward(stream, of(y), of(r), of(x), {of(w), true}, of(sums), shape.last(), kEps);
        kernels::sharded_rmsnorm_products(stream, of(sums), of(dy), of(x), {of(w), true});
        kernels::sharded_rmsnorm_backward_input(stream, of(dx), of(dy), of(x), {of(w), true}, of(r), of(sums),
                                                shape.last());
      };
      shard(host.stream, [](const Pair& pair) { return pair.cpu; });
      shard(gpu(), [](const Pair& pair) { return pair.gpu; });
      expect_close(y, "the sharded norm's y");
      expect_close(dx, "the sharded norm's dx", 10);
    }
}

// More rows than there are threads for at a time, for each width from which more threads hold a row.
TEST_F(Norms, ManyRows) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Shape& shape : {Shape{3500, 136}, Shape{2200, 520}, Shape{1100, 1032}, Shape{560, 2056},
                               Shape{280, 4104}, Shape{280, 9000}}) {
      const Pair a = values_of(shape, dtype, "a"), b = values_of(shape, dtype, "b"), dy = values_of(shape, dtype, "dy"),
                 w = values_of({shape.last()}, dtype, "w");
      const Pair sum = output(shape, dtype), y = output(shape, dtype), dx = output(shape, dtype),
                 dw = output(w.cpu.shape(), DType::f32), r = output({shape[0]}, accumulator(dtype)),
                 mean = output(r.cpu.shape(), r.cpu.dtype()), db = output(w.cpu.shape(), DType::f32);
      const auto run = [&](Stream& stream, const auto& of) {
        kernels::add_rmsnorm_forward(stream, of(sum), of(y), of(r), of(a), of(b), of(w), kEps);
        kernels::rmsnorm_backward(stream, of(dx), of(dw), Write::overwrite, of(b), of(dy), of(sum), of(w), of(r));
      };
      run(host.stream, [](const Pair& pair) { return pair.cpu; });
      run(gpu(), [](const Pair& pair) { return pair.gpu; });
      EXPECT_TRUE(agree(sum.gpu, sum.cpu, 0, 0)) << dtype << shape;
      expect_close(y, "y");
      expect_close(dx, "dx", 10);
      expect_close(dw, "dw", 100);
      const auto normalise = [&](Stream& stream, const auto& of) {
        kernels::layernorm_forward(stream, of(y), of(mean), of(r), of(a), of(w), of(Pair()), kEps);
        kernels::layernorm_backward(stream, of(dx), {.dw = of(dw), .db = of(db)}, of(b), of(dy), of(a), of(w), of(mean),
                                    of(r));
      };
      normalise(host.stream, [](const Pair& pair) { return pair.cpu; });
      normalise(gpu(), [](const Pair& pair) { return pair.gpu; });
      expect_close(y, "layernorm's y");
      expect_close(dx, "layernorm's dx", 10);
      expect_close(dw, "layernorm's dw", 100);
      expect_close(db, "layernorm's db", 100);
    }
}

TEST_F(Norms, LayerNorm) {
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes)
      for (const bool biased : {false, true}) {
        const Pair x = values_of(shape, dtype, "x"), w = values_of({shape.last()}, dtype, "w"),
                   dy = values_of(shape, dtype, "dy");
        const Pair b = biased ? values_of({shape.last()}, dtype, "b") : Pair();
        const Pair y = output(shape, dtype), dx = output(shape, dtype), mean = output({shape[0]}, accumulator(dtype)),
                   r = output({shape[0]}, accumulator(dtype));
        kernels::layernorm_forward(host.stream, y.cpu, mean.cpu, r.cpu, x.cpu, w.cpu, b.cpu, kEps);
        kernels::layernorm_forward(gpu(), y.gpu, mean.gpu, r.gpu, x.gpu, w.gpu, b.gpu, kEps);
        if (shape.last() == 1) continue;  // r is 1 / sqrt(eps): x - mean is nothing but rounding error
        expect_close(y, "y");
        expect_close(mean, "mean");
        expect_close(r, "r");
        kernels::layernorm_backward(host.stream, dx.cpu, {}, {}, dy.cpu, x.cpu, w.cpu, mean.cpu, r.cpu);
        kernels::layernorm_backward(gpu(), dx.gpu, {}, {}, dy.gpu, x.gpu, w.gpu, mean.gpu, r.gpu);
        expect_close(dx, "dx", 10);
      }
}

TEST_F(Norms, AddLayerNormForward) {
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Pair a = values_of(shape, dtype, "a"), b = values_of(shape, dtype, "b"),
                 w = values_of({shape.last()}, dtype, "w"), bias = values_of({shape.last()}, dtype, "bias");
      const Pair sum = output(shape, dtype), y = output(shape, dtype), mean = output({shape[0]}, accumulator(dtype)),
                 r = output({shape[0]}, accumulator(dtype));
      const auto run = [&](Stream& stream, const auto& of) {
        kernels::add_layernorm_forward(stream, of(sum), of(y), of(mean), of(r), of(a), of(b), of(w), of(bias), kEps);
      };
      run(host.stream, [](const Pair& pair) { return pair.cpu; });
      run(gpu(), [](const Pair& pair) { return pair.gpu; });
      EXPECT_TRUE(agree(sum.gpu, sum.cpu, 0, 0)) << dtype << shape;
      if (shape.last() == 1) continue;
      expect_close(y, "y");
      expect_close(mean, "mean");
      expect_close(r, "r");
      const Pair again = output(shape, dtype);
      kernels::add_layernorm_forward(gpu(), a.gpu, again.gpu, mean.gpu, r.gpu, a.gpu, b.gpu, w.gpu, bias.gpu, kEps);
      EXPECT_EQ(values(to_host(again.gpu)), values(to_host(y.gpu))) << "in place";
      EXPECT_EQ(values(to_host(a.gpu)), values(to_host(sum.gpu))) << "in place";
    }
}

// All gradients at once, into buffers of any dtype, either of them or both; two calls give the same bits.
TEST_F(Norms, LayerNormBackward) {
  for (const DType dtype : kDTypes)
    for (const DType gradient : kDTypes)
      for (const Shape& shape : kShapes)
        for (const bool adds : {false, true}) {
          const Pair x = values_of(shape, dtype, "x"), dy = values_of(shape, dtype, "dy"),
                     w = values_of({shape.last()}, dtype, "w"), mean = values_of({shape[0]}, accumulator(dtype), "m"),
                     r = values_of({shape[0]}, accumulator(dtype), "r"),
                     dsum = adds ? values_of(shape, dtype, "dsum") : Pair();
          const Pair dx = output(shape, dtype), dw = output(w.cpu.shape(), gradient),
                     db = output(w.cpu.shape(), gradient);
          const Tensor again = poisoned(shape, dtype), weight_alone = poisoned(w.cpu.shape(), gradient),
                       bias_alone = poisoned(w.cpu.shape(), gradient);
          const auto backward = [&](Stream& stream, const Tensor& to, const kernels::NormGradients& gradients,
                                    const auto& of) {
            kernels::layernorm_backward(stream, to, gradients, of(dsum), of(dy), of(x), of(w), of(mean), of(r));
          };
          const auto on_cpu = [](const Pair& pair) { return pair.cpu; };
          const auto on_gpu = [](const Pair& pair) { return pair.gpu; };
          for (const Write write : {Write::overwrite, Write::accumulate}) {
            backward(host.stream, dx.cpu, {dw.cpu, db.cpu, write, write}, on_cpu);
            backward(gpu(), dx.gpu, {dw.gpu, db.gpu, write, write}, on_gpu);
            expect_close(dx, "dx", 10);
            const double rounding = std::max(tolerance(gradient), tolerance(accumulator(dtype)));
            const double terms = std::sqrt(static_cast<double>(shape[0]) + 1);
            EXPECT_TRUE(agree(dw.gpu, dw.cpu, 4 * rounding * terms, rounding)) << dtype << gradient << shape;
            EXPECT_TRUE(agree(db.gpu, db.cpu, 4 * rounding * terms, rounding)) << dtype << gradient << shape;
            backward(gpu(), again, {weight_alone, {}, write}, on_gpu);
            EXPECT_EQ(values(to_host(weight_alone)), values(to_host(dw.gpu)));
            EXPECT_EQ(values(to_host(again)), values(to_host(dx.gpu)));
            backward(gpu(), adds ? dsum.gpu : again, {{}, bias_alone, write, write}, on_gpu);
            EXPECT_EQ(values(to_host(bias_alone)), values(to_host(db.gpu)));
            if (!adds) continue;
            EXPECT_EQ(values(to_host(dsum.gpu)), values(to_host(dx.gpu))) << "in place";
            gpu().write(dsum.gpu, dsum.cpu.raw());
          }
        }
}

// Every tensor begins one element after an aligned address, so that packs cannot be used.
TEST_F(Norms, MisalignedRows) {
  const Shape shape = {3, 512};
  for (const DType dtype : kDTypes) {
    const auto shifted = [&](const Shape& of, std::string_view name) {
      const Tensor all = host.normal({of.elements() + 1}, dtype, name);
      return Pair{all.narrow(0, 1, of.elements()).reshape(of), to_gpu(all).narrow(0, 1, of.elements()).reshape(of)};
    };
    const Pair x = shifted(shape, "x"), w = shifted({512}, "w"), y = shifted(shape, "y"), dw = shifted({512}, "dw");
    const Pair r = output({3}, accumulator(dtype));
    kernels::rmsnorm_forward(host.stream, y.cpu, r.cpu, x.cpu, w.cpu, kEps);
    kernels::rmsnorm_forward(gpu(), y.gpu, r.gpu, x.gpu, w.gpu, kEps);
    expect_close(y, "y");
    kernels::rmsnorm_backward_weight(host.stream, dw.cpu, Write::accumulate, y.cpu, x.cpu, r.cpu);
    kernels::rmsnorm_backward_weight(gpu(), dw.gpu, Write::accumulate, y.gpu, x.gpu, r.gpu);
    expect_close(dw, "dw", 10);
  }
}

// Sums over rows, into gradients of any dtype; two calls give the same bits.
TEST_F(Norms, GradientsOfWeights) {
  for (const DType dtype : kDTypes)
    for (const DType gradient : kDTypes)
      for (const Shape& shape :
           {Shape{0, 8}, Shape{1, 1}, Shape{3, 37}, Shape{64, 256}, Shape{65, 264}, Shape{40000, 24}}) {
        if (!has_gradients(dtype, gradient)) continue;
        const Pair x = values_of(shape, dtype, "x"), dy = values_of(shape, dtype, "dy"),
                   mean = values_of({shape[0]}, accumulator(dtype), "mean"),
                   r = values_of({shape[0]}, accumulator(dtype), "r");
        const auto check = [&](const char* what, const auto& kernel) {
          const Pair dw = output({shape.last()}, gradient);
          const Tensor again = poisoned({shape.last()}, gradient);
          for (const Write write : {Write::overwrite, Write::accumulate}) {
            kernel(host.stream, dw.cpu, write, dy.cpu, x.cpu, mean.cpu, r.cpu);
            kernel(gpu(), dw.gpu, write, dy.gpu, x.gpu, mean.gpu, r.gpu);
            kernel(gpu(), again, write, dy.gpu, x.gpu, mean.gpu, r.gpu);
            const double rounding = std::max(tolerance(gradient), tolerance(accumulator(dtype)));
            const double terms = std::sqrt(static_cast<double>(shape[0]) + 1);
            EXPECT_TRUE(agree(dw.gpu, dw.cpu, 2 * rounding * terms, rounding)) << what << dtype << gradient << shape;
            EXPECT_EQ(values(to_host(dw.gpu)), values(to_host(again))) << what;
          }
        };
        check("rmsnorm", [](Stream& s, const Tensor& dw, Write write, const Tensor& g, const Tensor& in, const Tensor&,
                            const Tensor& scale) { kernels::rmsnorm_backward_weight(s, dw, write, g, in, scale); });
        check("layernorm",
              [](Stream& s, const Tensor& dw, Write write, const Tensor& g, const Tensor& in, const Tensor& m,
                 const Tensor& scale) { kernels::layernorm_backward_weight(s, dw, write, g, in, m, scale); });
        check("bias", [](Stream& s, const Tensor& dw, Write write, const Tensor& g, const Tensor&, const Tensor&,
                         const Tensor&) { kernels::bias_backward(s, dw, write, g); });
      }
}

}  // namespace
}  // namespace witan
