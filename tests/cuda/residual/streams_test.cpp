// The CUDA kernels of parallel residual streams agree with the CPU's.
#include "witan/kernels/residual/streams.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using kernels::StreamMixing;
using testing::CudaTest;
using testing::values;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

struct Sizes {
  int64_t T, D;
  StreamMixing mixing;
};
// No tokens; one channel; widths that are no whole packs; more tokens than a block has; more than four streams.
constexpr Sizes kSizes[] = {{0, 8, {.streams = 4}},
                            {1, 1, {.streams = 2, .iterations = 1}},
                            {9, 37, {.streams = 3, .iterations = 5}},
                            {70, 264, {.streams = 4}},
                            {300, 1024, {.streams = 4}},
                            {17, 130, {.streams = 8, .iterations = 32}}};

class StreamTwins : public CudaTest {
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
  void expect_close(const Pair& pair, DType dtype, const char* what, double scale = 1) {
    const double allowed = scale * tolerance(dtype);
    EXPECT_TRUE(agree(pair.gpu, pair.cpu, allowed, allowed)) << what << " " << dtype << pair.cpu.shape();
  }
  template <class Test>
  void for_sizes(const Test& test) {
    for (const DType dtype : kDTypes)
      for (const Sizes& size : kSizes) test(dtype, size);
  }
};

TEST_F(StreamTwins, ProjectToLogits) {
  for_sizes([&](DType dtype, const Sizes& size) {
    const DType wide = accumulator(dtype);
    const int64_t n = size.mixing.streams, W = n * size.D;
    for (const int64_t C : {n, n * (n + 2)}) {
      const Pair x = values_of({size.T, W}, dtype, "x"), w = values_of({C, W}, wide, "w"),
                 g = values_of({size.T, C}, wide, "g");
      const Pair logits = output({size.T, C}, wide), r = output({size.T}, wide);
      kernels::stream_logits_forward(host.stream, logits.cpu, r.cpu, x.cpu, w.cpu, 1e-5);
      kernels::stream_logits_forward(gpu(), logits.gpu, r.gpu, x.gpu, w.gpu, 1e-5);
      expect_close(logits, wide, "logits", 100);
      expect_close(r, wide, "r", 10);

      const Pair dx = values_of({size.T, W}, dtype, "dx");
      kernels::stream_logits_backward_input(host.stream, dx.cpu, g.cpu, logits.cpu, r.cpu, x.cpu, w.cpu);
      kernels::stream_logits_backward_input(gpu(), dx.gpu, g.gpu, to_gpu(logits.cpu), to_gpu(r.cpu), x.gpu, w.gpu);
      expect_close(dx, dtype, "dx", 10);
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        const Pair dw = write == Write::overwrite ? output({C, W}, wide) : values_of({C, W}, wide, "dw");
        const Tensor parts = poisoned({kernels::kStreamParts, C * W}, wide);
        kernels::stream_logits_backward_weight(host.stream, dw.cpu, write, {}, g.cpu, r.cpu, x.cpu);
        kernels::stream_logits_backward_weight(gpu(), dw.gpu, write, parts, g.gpu, to_gpu(r.cpu), x.gpu);
        expect_close(dw, wide, "dw", 100);
      }
    }
  });
}

TEST_F(StreamTwins, MakeWeights) {
  for_sizes([&](DType dtype, const Sizes& size) {
    if (dtype != accumulator(dtype)) return;
    const int64_t n = size.mixing.streams;
    for (const bool mixes : {false, true}) {
      const int64_t C = mixes ? n * (n + 2) : n;
      const Pair logits = values_of({size.T, C}, dtype, "logits"), base = values_of({C}, dtype, "base"),
                 scale = values_of({mixes ? 3 : 1}, dtype, "scale");
      const Pair pre = output({size.T, n}, dtype), mix = mixes ? output({size.T, C - n}, dtype) : Pair();
      kernels::stream_weights_forward(host.stream, pre.cpu, mix.cpu, logits.cpu, base.cpu, scale.cpu, size.mixing);
      kernels::stream_weights_forward(gpu(), pre.gpu, mix.gpu, logits.gpu, base.gpu, scale.gpu, size.mixing);
      expect_close(pre, dtype, "pre");
      if (mixes) expect_close(mix, dtype, "mix", 10);

      const Pair dpre = values_of({size.T, n}, dtype, "dpre"),
                 dmix = mixes ? values_of({size.T, C - n}, dtype, "dmix") : Pair();
      const Pair dz = output({size.T, C}, dtype), dlogits = output({size.T, C}, dtype);
      for (const bool whole : {true, false}) {  // else only one of the two outputs was used
        const Pair first = whole ? dpre : Pair();
        kernels::stream_weights_backward(host.stream, dz.cpu, dlogits.cpu, first.cpu, dmix.cpu, logits.cpu, base.cpu,
                                         scale.cpu, size.mixing);
        kernels::stream_weights_backward(gpu(), dz.gpu, dlogits.gpu, first.gpu, dmix.gpu, logits.gpu, base.gpu,
                                         scale.gpu, size.mixing);
        expect_close(dz, dtype, "dz", 100);
        expect_close(dlogits, dtype, "dlogits", 100);
      }
      const Pair dscale = values_of({mixes ? 3 : 1}, dtype, "dscale");
      kernels::stream_scale_backward(host.stream, dscale.cpu, Write::accumulate, dz.cpu, logits.cpu, n);
      kernels::stream_scale_backward(gpu(), dscale.gpu, Write::accumulate, to_gpu(dz.cpu), logits.gpu, n);
      expect_close(dscale, dtype, "dscale", 1000);
    }
  });
}

TEST_F(StreamTwins, CollapseAndExpand) {
  for_sizes([&](DType dtype, const Sizes& size) {
    const DType wide = accumulator(dtype);
    const int64_t n = size.mixing.streams, T = size.T, D = size.D;
    const Pair x = values_of({T, n * D}, dtype, "x"), y = values_of({T, D}, dtype, "y"),
               pre = values_of({T, n}, wide, "pre"), mix = values_of({T, n * (n + 1)}, wide, "mix"),
               dout = values_of({T, n * D}, dtype, "dout");
    for (const bool weighted : {true, false}) {
      const Pair out = output({T, D}, dtype);
      kernels::collapse_streams(host.stream, out.cpu, x.cpu, weighted ? pre.cpu : Tensor());
      kernels::collapse_streams(gpu(), out.gpu, x.gpu, weighted ? pre.gpu : Tensor());
      expect_close(out, dtype, "collapse", 2);
      const Pair wider = output({T, n * D}, dtype);
      kernels::expand_streams(host.stream, wider.cpu, weighted ? x.cpu : Tensor(), y.cpu,
                              weighted ? mix.cpu : Tensor());
      kernels::expand_streams(gpu(), wider.gpu, weighted ? x.gpu : Tensor(), y.gpu, weighted ? mix.gpu : Tensor());
      expect_close(wider, dtype, "expand", 2);
    }
    for (const bool wanted : {true, false}) {
      const Pair dx = wanted ? output({T, n * D}, dtype) : Pair(), dpre = output({T, n}, wide);
      kernels::collapse_streams_backward(host.stream, dx.cpu, dpre.cpu, y.cpu, x.cpu, pre.cpu);
      kernels::collapse_streams_backward(gpu(), dx.gpu, dpre.gpu, y.gpu, x.gpu, pre.gpu);
      if (wanted) expect_close(dx, dtype, "dx of collapse");
      expect_close(dpre, wide, "dpre", 1000);
      const Pair to = wanted ? output({T, n * D}, dtype) : Pair(), dy = output({T, D}, dtype),
                 dmix = output({T, n * (n + 1)}, wide);
      kernels::expand_streams_backward(host.stream, to.cpu, dy.cpu, dmix.cpu, dout.cpu, x.cpu, y.cpu, mix.cpu);
      kernels::expand_streams_backward(gpu(), to.gpu, dy.gpu, dmix.gpu, dout.gpu, x.gpu, y.gpu, mix.gpu);
      if (wanted) expect_close(to, dtype, "dx of expand", 2);
      expect_close(dy, dtype, "dy", 2);
      expect_close(dmix, wide, "dmix", 1000);
    }
  });
}

// Two calls give the same bits.
TEST_F(StreamTwins, Repeat) {
  const int64_t n = 4, T = 500, W = n * 200, C = n * (n + 2);
  const Tensor x = values_of({T, W}, DType::bf16, "x").gpu, g = values_of({T, C}, DType::f32, "g").gpu,
               r = values_of({T}, DType::f32, "r").gpu;
  const auto weight = [&] {
    const Tensor dw = poisoned({C, W}, DType::f32), parts = poisoned({kernels::kStreamParts, C * W}, DType::f32);
    kernels::stream_logits_backward_weight(gpu(), dw, Write::overwrite, parts, g, r, x);
    return values(to_host(dw));
  };
  EXPECT_EQ(weight(), weight());
}

}  // namespace
}  // namespace witan
