// Tests that Mamba-2's CUDA kernels agree with the CPU's, that packing changes no bit of a document on a GPU, and that
// decoding continues from the state of a forward.
#include "witan/kernels/state_space/ssd.h"

#include <cmath>

#include "cuda/linear_attention/recurrent_twins.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;
using kernels::SsdHeads;
using testing::kDocuments;
using testing::kDTypes;
using testing::kRowTokens;
using testing::values;

// Slices of channels that are not full, and several heads of a group; Nemotron's sizes.
constexpr SsdHeads kSsdSizes[] = {{.heads = 4, .groups = 2, .head_dim = 40, .state_dim = 24},
                                  {.heads = 3, .groups = 1, .head_dim = 64, .state_dim = 128}};

// The backward keeps a chunk in shared memory: in float64 for states of up to 96 numbers.
bool fits_in_a_block(const SsdHeads& heads, DType dtype) {
  return dtype != DType::f64 || heads.state_dim <= 96;
}

class SsdTwins : public testing::RecurrentTwins {
 protected:
  // Steps, or logarithms of decays.
  Pair gates(const Shape& shape, DType dtype, std::string_view name, bool decays) {
    const Tensor cpu = host.normal(shape, accumulator(dtype), name);
    dispatch_floating(cpu.dtype(), [&]<class A>() {
      for (A& x : cpu.span<A>()) x = A(std::log1p(std::exp(static_cast<double>(x))) * (decays ? -0.25 : 1));
    });
    return {cpu, to_gpu(cpu)};
  }
  struct Inputs {
    Pair xbc, dt, a, D, ids;
    SsdHeads heads;
    kernels::SsdInputs cpu() const { return {xbc.cpu, dt.cpu, a.cpu, D.cpu, ids.cpu, heads}; }
    kernels::SsdInputs gpu() const { return {xbc.gpu, dt.gpu, a.gpu, D.gpu, ids.gpu, heads}; }
  };
  Inputs inputs(int64_t B, const SsdHeads& heads, DType dtype) {
    return {values_of({B, kRowTokens, heads.channels()}, dtype, "xbc"),
            gates({B, kRowTokens, heads.heads}, dtype, "dt", false),
            gates({B, kRowTokens, heads.heads}, dtype, "a", true),
            values_of({heads.heads}, accumulator(dtype), "D"),
            ids(B),
            heads};
  }
  kernels::SsdGradients gradients(const Inputs& in) {
    const DType wide = in.dt.gpu.dtype();
    const Shape of_gates = in.dt.gpu.shape();
    const int64_t B = of_gates[0], S = of_gates[1], chunks = (S + kernels::kSsdChunk - 1) / kernels::kSsdChunk;
    kernels::SsdGradients to{poisoned(in.xbc.gpu.shape(), in.xbc.gpu.dtype()), poisoned(of_gates, wide),
                             poisoned(of_gates, wide), poisoned({in.heads.heads}, wide)};
    to.states = poisoned({B, chunks, in.heads.heads, in.heads.state_dim, in.heads.head_dim}, wide);
    to.shares = poisoned({B, S, in.heads.heads, 2 * in.heads.state_dim}, wide);
    return to;
  }
  // y, and the gradients of xbc, dt and a, on the host.
  std::vector<Tensor> all_of(const Inputs& in, const Tensor& dy) {
    const Tensor y = poisoned(dy.shape(), dy.dtype());
    kernels::ssd_forward(gpu(), y, {}, in.gpu());
    const kernels::SsdGradients to = gradients(in);
    kernels::ssd_backward(gpu(), to, dy, in.gpu());
    return {to_host(y), to_host(to.dxbc), to_host(to.ddt), to_host(to.da)};
  }
};

TEST_F(SsdTwins, ForwardAndBackward) {
  for (const DType dtype : kDTypes)
    for (const SsdHeads& heads : kSsdSizes) {
      if (!fits_in_a_block(heads, dtype)) continue;
      const Inputs in = inputs(2, heads, dtype);
      const Pair dy = values_of({2, kRowTokens, heads.inner()}, dtype, "dy");
      const Pair y = output(dy.cpu.shape(), dtype),
                 last = output({2, heads.heads, heads.state_dim, heads.head_dim}, accumulator(dtype));
      kernels::ssd_forward(host.stream, y.cpu, last.cpu, in.cpu());
      kernels::ssd_forward(gpu(), y.gpu, last.gpu, in.gpu());
      expect_close(y, "y", 30);
      expect_close(last, "last", 100);
      const Pair dxbc = output(in.xbc.cpu.shape(), dtype), ddt = output(in.dt.cpu.shape(), accumulator(dtype)),
                 da = output(in.dt.cpu.shape(), accumulator(dtype)), dD = output({heads.heads}, accumulator(dtype));
      kernels::ssd_backward(host.stream, {dxbc.cpu, ddt.cpu, da.cpu, dD.cpu}, dy.cpu, in.cpu());
      const kernels::SsdGradients to = gradients(in);
      kernels::ssd_backward(gpu(), to, dy.gpu, in.gpu());
      expect_close({dxbc.cpu, to.dxbc}, "dxbc", 100);
      expect_close({ddt.cpu, to.ddt}, "ddt", 1000);
      expect_close({da.cpu, to.da}, "da", 1000);
      expect_close({dD.cpu, to.dD}, "dD", 1000);
    }
}

TEST_F(SsdTwins, PackingChangesNoBitOfADocument) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const SsdHeads& heads : kSsdSizes) {
      const Inputs packed = inputs(1, heads, dtype);
      const Pair dy = values_of({1, kRowTokens, heads.inner()}, dtype, "dy");
      const std::vector<Tensor> together = all_of(packed, dy.gpu);
      int64_t begin = 0;
      for (const int64_t count : kDocuments) {
        const auto part = [&](const Tensor& x) { return x.narrow(1, begin, count); };
        Inputs alone = packed;
        for (Pair* x : {&alone.xbc, &alone.dt, &alone.a}) x->gpu = part(x->gpu);
        alone.ids = {};
        const std::vector<Tensor> single = all_of(alone, part(dy.gpu));
        for (size_t i = 0; i < single.size(); ++i)
          EXPECT_EQ(values(single[i]), values(part(together[i])))
              << dtype << ", from token " << begin << ", tensor " << i;
        begin += count;
      }
    }
}

TEST_F(SsdTwins, Steps) {
  for (const DType dtype : kDTypes)
    for (const SsdHeads& heads : kSsdSizes) {
      const Pair states = output({3, heads.heads, heads.state_dim, heads.head_dim}, accumulator(dtype)),
                 D = values_of({heads.heads}, accumulator(dtype), "D");
      for (const auto& runs : std::vector<std::vector<CacheRun>>{{{2, 0, 5}, {0, 0, 1}}, {{0, 1, 1}, {2, 5, 1}}}) {
        const CacheTokens tokens = tokens_of(runs);
        const int64_t T = tokens.rows.elements();
        const Pair xbc = values_of({T, heads.channels()}, dtype, "xbc"),
                   dt = gates({T, heads.heads}, dtype, "dt", false), a = gates({T, heads.heads}, dtype, "a", true);
        const Pair y = output({T, heads.inner()}, dtype);
        kernels::ssd_decode(host.stream, y.cpu, states.cpu, {xbc.cpu, dt.cpu, a.cpu, D.cpu, {}, heads}, tokens);
        kernels::ssd_decode(gpu(), y.gpu, states.gpu, {xbc.gpu, dt.gpu, a.gpu, D.gpu, {}, heads}, on_gpu(tokens));
        expect_close(y, "y", 30);
      }
    }
}

TEST_F(SsdTwins, Gates) {
  for (const DType dtype : kDTypes)
    for (const double least : {0.0, 0.6}) {
      const DType wide = accumulator(dtype);
      const Pair raw = values_of({777, 9}, dtype, "raw"), A = values_of({9}, wide, "A"),
                 bias = values_of({9}, wide, "bias"), ddt = values_of({777, 9}, wide, "ddt"),
                 da = values_of({777, 9}, wide, "da");
      const Pair dt = output({777, 9}, wide), a = output({777, 9}, wide), draw = output({777, 9}, dtype),
                 dA = output({9}, wide), dbias = output({9}, wide);
      kernels::ssd_gates_forward(host.stream, dt.cpu, a.cpu, raw.cpu, A.cpu, bias.cpu, least);
      kernels::ssd_gates_forward(gpu(), dt.gpu, a.gpu, raw.gpu, A.gpu, bias.gpu, least);
      kernels::ssd_gates_backward(host.stream, {draw.cpu, dA.cpu, dbias.cpu}, ddt.cpu, da.cpu, raw.cpu, A.cpu, bias.cpu,
                                  least);
      kernels::ssd_gates_backward(gpu(), {draw.gpu, dA.gpu, dbias.gpu}, ddt.gpu, da.gpu, raw.gpu, A.gpu, bias.gpu,
                                  least);
      expect_close(dt, "dt");
      expect_close(a, "a", 100);
      expect_close(draw, "draw", 100);
      expect_close(dA, "dA", 1000);
      expect_close(dbias, "dbias", 1000);
    }
}

TEST_F(SsdTwins, NormsInGroups) {
  struct Size {
    int64_t rows, D, groups;
  };
  for (const DType dtype : kDTypes)
    for (const auto [rows, D, groups] : {Size{1, 2, 2}, Size{77, 120, 3}, Size{9, 4096, 8}, Size{50, 300, 1}}) {
      const Shape shape{rows, D};
      const DType wide = accumulator(dtype);
      const Pair x = values_of(shape, dtype, "x"), z = values_of(shape, dtype, "z"), w = values_of({D}, wide, "w"),
                 dy = values_of(shape, dtype, "dy");
      const Pair y = output(shape, dtype), r = output({rows, groups}, wide), dx = output(shape, dtype),
                 dz = output(shape, dtype), dw = output({D}, wide);
      kernels::gated_group_rmsnorm_forward(host.stream, y.cpu, r.cpu, x.cpu, z.cpu, w.cpu, 1e-5);
      kernels::gated_group_rmsnorm_forward(gpu(), y.gpu, r.gpu, x.gpu, z.gpu, w.gpu, 1e-5);
      expect_close(y, "y");
      kernels::gated_group_rmsnorm_backward(host.stream, {dx.cpu, dz.cpu, dw.cpu}, dy.cpu, x.cpu, z.cpu, w.cpu, r.cpu);
      kernels::gated_group_rmsnorm_backward(gpu(), {dx.gpu, dz.gpu, dw.gpu}, dy.gpu, x.gpu, z.gpu, w.gpu, r.gpu);
      expect_close(dx, "dx", 100);
      expect_close(dz, "dz", 100);
      expect_close(dw, "dw", 1000);
    }
}

}  // namespace
}  // namespace witan
