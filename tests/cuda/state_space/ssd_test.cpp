// Tests that Mamba-2's CUDA kernels agree with the CPU's, that packing changes no bit of a document on a GPU, and that
// decoding continues from the state of a forward.
#include "witan/kernels/state_space/ssd.h"

#include <cmath>

#include "cuda/linear_attention/recurrent_twins.h"
#include "witan/nn/mixer/chunk_steps.h"

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
  kernels::SsdMemory memory(const Inputs& in, bool backward) {
    const kernels::SsdMemory memory = kernels::ssd_memory(gpu(), in.xbc.gpu, in.heads, backward);
    poison({&memory.chunks, &memory.scales, &memory.skips, &memory.state_gradients, &memory.states, &memory.shares});
    return memory;
  }
  kernels::SsdGradients gradients(const Inputs& in) {
    const DType wide = in.dt.gpu.dtype();
    const Shape of_gates = in.dt.gpu.shape();
    kernels::SsdGradients to{poisoned(in.xbc.gpu.shape(), in.xbc.gpu.dtype()), poisoned(of_gates, wide),
                             poisoned(of_gates, wide), poisoned({in.heads.heads}, wide)};
    to.memory = memory(in, true);
    return to;
  }
  // y, the last state, and the gradients of xbc, dt, a and D, on the host.
  std::vector<Tensor> all_of(const Inputs& in, const Tensor& dy) {
    const Tensor y = poisoned(dy.shape(), dy.dtype()),
                 last =
                     poisoned({dy.size(0), in.heads.heads, in.heads.state_dim, in.heads.head_dim}, in.dt.gpu.dtype());
    kernels::ssd_forward(gpu(), y, last, in.gpu(), memory(in, false));
    const kernels::SsdGradients to = gradients(in);
    kernels::ssd_backward(gpu(), to, dy, in.gpu());
    return {to_host(y), to_host(last), to_host(to.dxbc), to_host(to.ddt), to_host(to.da), to_host(to.dD)};
  }
  // The same in float64 on the CPU.
  std::vector<Tensor> exactly(const Inputs& in, const Tensor& dy) {
    const auto output = [&](const Shape& shape) { return host.poisoned(shape, DType::f64); };
    const SsdHeads& heads = in.heads;
    const kernels::SsdInputs inputs{
        in_float64(in.xbc.cpu), in_float64(in.dt.cpu), in_float64(in.a.cpu), in_float64(in.D.cpu), in.ids.cpu, heads};
    const std::vector<Tensor> all = {
        output(dy.shape()),         output({dy.size(0), heads.heads, heads.state_dim, heads.head_dim}),
        output(in.xbc.cpu.shape()), output(in.dt.cpu.shape()),
        output(in.dt.cpu.shape()),  output({heads.heads})};
    kernels::ssd_forward(host.stream, all[0], all[1], inputs);
    kernels::ssd_backward(host.stream, {all[2], all[3], all[4], all[5]}, in_float64(dy), inputs);
    return all;
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
      kernels::ssd_forward(gpu(), y.gpu, last.gpu, in.gpu(), memory(in, false));
      expect_close(y, "y", 30);
      // On tensor cores the operands of float32 sums are rounded.
      expect_close(last, "last", dtype == DType::bf16 ? 1000 : 100);
      const Pair dxbc = output(in.xbc.cpu.shape(), dtype), ddt = output(in.dt.cpu.shape(), accumulator(dtype)),
                 da = output(in.dt.cpu.shape(), accumulator(dtype)), dD = output({heads.heads}, accumulator(dtype));
      kernels::ssd_backward(host.stream, {dxbc.cpu, ddt.cpu, da.cpu, dD.cpu}, dy.cpu, in.cpu());
      const kernels::SsdGradients to = gradients(in);
      kernels::ssd_backward(gpu(), to, dy.gpu, in.gpu());
      expect_close({dxbc.cpu, to.dxbc}, "dxbc", 100);
      // Their terms cancel, so that rounded operands show in single numbers.
      for (const auto& [found, expected] : {std::pair{to.ddt, ddt.cpu}, {to.da, da.cpu}})
        if (dtype == DType::bf16)
          EXPECT_LT(distance(to_host(found), expected), 6e-3);
        else
          expect_close({expected, found}, "gates", 1000);
      expect_close({dD.cpu, to.dD}, "dD", 1000);
    }
}

// A rounding to bfloat16 is a distance of 1.7e-3, and products have operands that were rounded before. Heads whose
// channels need several tiles or fill none, more heads of a group than a block takes, and decays that reach beyond
// float32's exponents within a chunk.
TEST_F(SsdTwins, TensorCoresAgreeWithFloat64) {
  const char* const names[] = {"y", "last", "dxbc", "ddt", "da", "dD"};
  for (const double decay : {1.0, 40.0})
    for (const SsdHeads& heads :
         {kSsdSizes[0], kSsdSizes[1], SsdHeads{10, 2, 72, 96}, SsdHeads{6, 1, 136, 40}, SsdHeads{1, 1, 8, 8}}) {
      Inputs in = inputs(2, heads, DType::bf16);
      for (float& a : in.a.cpu.span<float>()) a *= static_cast<float>(decay);
      in.a.gpu = to_gpu(in.a.cpu);
      const Pair dy = values_of({2, kRowTokens, heads.inner()}, DType::bf16, "dy");
      const std::vector<Tensor> found = all_of(in, dy.gpu), again = all_of(in, dy.gpu), exact = exactly(in, dy.cpu);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_LT(distance(found[i], exact[i]), 6e-3)
            << names[i] << ", " << heads.state_dim << " x " << heads.head_dim << ", decay " << decay;
        EXPECT_EQ(values(found[i]), values(again[i])) << names[i];
      }
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
        for (const size_t i : {0, 2, 3, 4})
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

// Whole forwards on the GPU against steps that continue chunks: by single tokens, and by several.
TEST_F(SsdTwins, ChunkStepsHaveTheBitsOfTheForward) {
  constexpr int64_t S = 150;
  for (const DType dtype : kDTypes)
    for (const SsdHeads& heads : kSsdSizes) {
      const Tensor xbc = values_of({1, S, heads.channels()}, dtype, "xbc").gpu,
                   dt = gates({1, S, heads.heads}, dtype, "dt", false).gpu,
                   a = gates({1, S, heads.heads}, dtype, "a", true).gpu,
                   D = values_of({heads.heads}, accumulator(dtype), "D").gpu;
      const auto pass = [&](const ChunkPass& of) {
        kernels::ssd_forward(gpu(), of.o, of.last, {of.inputs[0], of.inputs[1], of.inputs[2], D, {}, heads, of.first});
      };
      const Tensor whole = gpu().empty({1, S, heads.inner()}, dtype);
      pass({whole, {}, {}, {xbc, dt, a}});
      const auto rows = [](const Tensor& x) { return x.reshape({x.size(1), x.size(2)}); };
      const auto kept = [&](const Tensor& x) { return gpu().zeros({2, kernels::kSsdChunk, x.size(2)}, x.dtype()); };
      const std::vector<ChunkInput> in = {{rows(xbc), kept(xbc)}, {rows(dt), kept(dt)}, {rows(a), kept(a)}};
      const Tensor states = gpu().empty({2, heads.heads, heads.state_dim, heads.head_dim}, accumulator(dtype));
      for (const auto& counts : std::vector<std::vector<int64_t>>{
               std::vector<int64_t>(S, 1), {70, 1, 1, 1, 1, 1, 75}, {64, 64, 22}, {3, 147}}) {
        const Tensor y = gpu().empty({S, heads.inner()}, dtype);
        int64_t past = 0;
        for (const int64_t count : counts) {
          std::vector<ChunkInput> step;
          for (const ChunkInput& input : in) step.push_back({input.x.narrow(0, past, count), input.kept});
          ChunkSteps(gpu(), y.narrow(0, past, count), states, step, pass).run(on_gpu(tokens_of({{1, past, count}})));
          past += count;
        }
        EXPECT_EQ(values(to_host(y)), values(to_host(whole))) << dtype << ", " << counts.size() << " steps";
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
