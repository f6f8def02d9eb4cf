// Tests that Gated DeltaNet's CUDA kernels agree with the CPU's, that packing changes no bit of a document on a GPU,
// and that decoding continues from the state of a forward.
#include "witan/kernels/linear_attention/gated_delta.h"

#include <cmath>

#include "cuda/linear_attention/recurrent_twins.h"
#include "witan/kernels/linear_attention/short_convolution.h"
#include "witan/nn/mixer/chunk_steps.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;
using kernels::Decay;
using kernels::DeltaHeads;
using testing::kDocuments;
using testing::kDTypes;
using testing::kRowTokens;
using testing::values;

// Slices of values that are not full, and several heads of values for one of keys; Qwen3-Next's sizes.
constexpr DeltaHeads kHeads[] = {{.keys = 2, .values = 4, .key_dim = 24, .value_dim = 40},
                                 {.keys = 1, .values = 2, .key_dim = 128, .value_dim = 128}};
// The same with keys for each head, as tensor cores want them for decays of channels.
constexpr DeltaHeads kOwnKeys[] = {{.keys = 2, .values = 2, .key_dim = 24, .value_dim = 40},
                                   {.keys = 1, .values = 1, .key_dim = 128, .value_dim = 128}};

// Heads, and what decays in them.
struct Rule {
  DeltaHeads heads;
  Decay decay = Decay::of_head;
  int64_t decays() const { return heads.values * (decay == Decay::of_head ? 1 : heads.key_dim); }
};
constexpr Rule kRules[] = {{kHeads[0]},
                           {kHeads[1]},
                           {kHeads[0], Decay::of_channels},
                           {kOwnKeys[0], Decay::of_channels},
                           {kOwnKeys[1], Decay::of_channels}};

// The logarithm of a decay, from a normal number.
double usual_decay(double x) {
  return -std::log1p(std::exp(x)) / 4;
}

class GatedDeltaTwins : public testing::RecurrentTwins {
 protected:
  // Normal numbers by a rule.
  Pair numbers(const Shape& shape, DType dtype, std::string_view name, double (*rule)(double)) {
    const Tensor cpu = host.normal(shape, accumulator(dtype), name);
    dispatch_floating(cpu.dtype(), [&]<class A>() {
      for (A& x : cpu.span<A>()) x = A(rule(static_cast<double>(x)));
    });
    return {cpu, to_gpu(cpu)};
  }
  Pair strengths(const Shape& shape, DType dtype) {
    return numbers(shape, dtype, "beta", [](double x) { return 1 / (1 + std::exp(-x)); });
  }
  struct Inputs {
    Pair qkv, g, beta, ids;
    DeltaHeads heads;
    Pair first = {};
    kernels::DeltaInputs cpu() const { return {qkv.cpu, g.cpu, beta.cpu, ids.cpu, heads, first.cpu}; }
    kernels::DeltaInputs gpu() const { return {qkv.gpu, g.gpu, beta.gpu, ids.gpu, heads, first.gpu}; }
  };
  Inputs inputs(int64_t B, const Rule& rule, DType dtype, double (*decay)(double) = usual_decay) {
    return {values_of({B, kRowTokens, rule.heads.channels()}, dtype, "qkv"),
            numbers({B, kRowTokens, rule.decays()}, dtype, "g", decay),
            strengths({B, kRowTokens, rule.heads.values}, dtype), ids(B), rule.heads};
  }
  kernels::DeltaMemory memory(const Inputs& in, bool backward) {
    const kernels::DeltaMemory memory = kernels::delta_memory(gpu(), in.gpu(), backward);
    poison({&memory.chunks, &memory.scales, &memory.decays, &memory.inverse, &memory.links, &memory.rows,
            &memory.states, &memory.state_gradients, &memory.u, &memory.du, &memory.shares});
    return memory;
  }
  kernels::DeltaGradients gradients(const Inputs& in) {
    const DType wide = in.g.gpu.dtype();
    return {poisoned(in.qkv.gpu.shape(), in.qkv.gpu.dtype()), poisoned(in.g.gpu.shape(), wide),
            poisoned(in.beta.gpu.shape(), wide), memory(in, true)};
  }
  // o, the last state, and the gradients of qkv, g and beta, on the host.
  std::vector<Tensor> all_of(const Inputs& in, const Tensor& d_o) {
    const DeltaHeads& heads = in.heads;
    const Tensor o = poisoned(d_o.shape(), d_o.dtype()),
                 last = poisoned({d_o.size(0), heads.values, heads.key_dim, heads.value_dim}, in.g.gpu.dtype());
    kernels::gated_delta_forward(gpu(), o, last, in.gpu(), memory(in, false));
    const kernels::DeltaGradients to = gradients(in);
    kernels::gated_delta_backward(gpu(), to, d_o, in.gpu());
    return {to_host(o), to_host(last), to_host(to.dqkv), to_host(to.dg), to_host(to.dbeta)};
  }
  // The same in float64 on the CPU.
  std::vector<Tensor> exactly(const Inputs& in, const Tensor& d_o) {
    const auto output = [&](const Shape& shape) { return host.poisoned(shape, DType::f64); };
    const kernels::DeltaInputs inputs{in_float64(in.qkv.cpu),
                                      in_float64(in.g.cpu),
                                      in_float64(in.beta.cpu),
                                      in.ids.cpu,
                                      in.heads,
                                      in.first.cpu.defined() ? in_float64(in.first.cpu) : Tensor()};
    const std::vector<Tensor> all = {output(d_o.shape()),
                                     output({d_o.size(0), in.heads.values, in.heads.key_dim, in.heads.value_dim}),
                                     output(in.qkv.cpu.shape()), output(in.g.cpu.shape()), output(in.beta.cpu.shape())};
    kernels::gated_delta_forward(host.stream, all[0], all[1], inputs);
    kernels::gated_delta_backward(host.stream, {all[2], all[3], all[4]}, in_float64(d_o), inputs);
    return all;
  }
};

// The backward keeps a chunk in shared memory: in float64 for keys of up to 56 channels, or 46 that decay by
// themselves.
bool fits(const DeltaHeads& heads, DType dtype) {
  return dtype != DType::f64 || heads.key_dim <= 46;
}

// The elements of a matrix from column `first` on.
std::vector<double> columns(const Tensor& x, int64_t first) {
  std::vector<double> out;
  const std::vector<double> all = values(x);
  const auto width = static_cast<size_t>(x.shape().last());
  for (size_t i = 0; i < all.size(); ++i)
    if (i % width >= static_cast<size_t>(first)) out.push_back(all[i]);
  return out;
}

// Channels in packs or not, some of wider rows as parts of q, k and v have them, and taps of a size of their own.
TEST_F(GatedDeltaTwins, Convolutions) {
  struct Size {
    int64_t C, taps;
    bool bias, silu = true;
  };
  for (const DType dtype : kDTypes)
    for (const auto [C, taps, has_bias, silu] :
         {Size{37, 4, false}, Size{48, 4, false}, Size{48, 4, true}, Size{48, 4, true, false}, Size{40, 3, true},
          Size{40, 3, false, false}}) {
      const Pair x = values_of({2, kRowTokens, C + 8}, dtype, "x"), w = values_of({C, taps}, dtype, "w"),
                 dy = values_of({2, kRowTokens, C + 8}, dtype, "dy"), documents = ids(2);
      const Pair bias = has_bias ? values_of({C}, dtype, "bias") : Pair();
      const Pair y = output(x.cpu.shape(), dtype), dx = output(x.cpu.shape(), dtype),
                 dw = output({C, taps}, accumulator(dtype)),
                 dbias = has_bias ? output({C}, accumulator(dtype)) : Pair();
      const kernels::ConvolutionFilters on_cpu{w.cpu, bias.cpu, silu}, of_gpu{w.gpu, bias.gpu, silu};
      const auto part = [&](const Tensor& of) { return of.narrow(2, 8, C); };
      const auto expect_part = [&](const Pair& of, const char* what) {
        const double allowed = 10 * tolerance(dtype);
        EXPECT_TRUE(testing::close(columns(to_host(of.gpu), 8), columns(of.cpu, 8), allowed, allowed))
            << what << " " << dtype << ", " << C << " channels";
      };
      const auto backward = [&](bool of_inputs, Write write) {
        const auto input = [&](const Tensor& of) { return of_inputs ? part(of) : Tensor(); };
        kernels::short_convolution_backward(host.stream, {input(dx.cpu), dw.cpu, dbias.cpu, write, write}, part(dy.cpu),
                                            part(x.cpu), on_cpu, documents.cpu);
        kernels::short_convolution_backward(gpu(), {input(dx.gpu), dw.gpu, dbias.gpu, write, write}, part(dy.gpu),
                                            part(x.gpu), of_gpu, documents.gpu);
      };
      kernels::short_convolution_forward(host.stream, part(y.cpu), part(x.cpu), on_cpu, documents.cpu);
      kernels::short_convolution_forward(gpu(), part(y.gpu), part(x.gpu), of_gpu, documents.gpu);
      expect_part(y, "y");
      for (const Write write : {Write::overwrite, Write::accumulate}) backward(true, write);
      expect_part(dx, "dx");
      expect_close(dw, "dw", 1000);
      if (has_bias) expect_close(dbias, "dbias", 1000);
      backward(false, Write::overwrite);
      expect_close(dw, "dw alone", 1000);
    }
}

// Columns of a wider matrix, as the gates of a convolution are.
TEST_F(GatedDeltaTwins, ProductsOfColumns) {
  for (const DType dtype : kDTypes) {
    const Pair x = values_of({41, 3 * 19}, dtype, "x"), y = output({41, 19}, dtype);
    const auto part = [](const Tensor& of, int64_t i) { return of.narrow(1, 19 * i, 19); };
    kernels::multiply_columns(host.stream, y.cpu, part(x.cpu, 0), part(x.cpu, 2));
    kernels::multiply_columns(gpu(), y.gpu, part(x.gpu, 0), part(x.gpu, 2));
    expect_close(y, "y");
  }
}

TEST_F(GatedDeltaTwins, ConvolutionsOfSteps) {
  for (const DType dtype : kDTypes)
    for (const auto& [has_bias, silu] : {std::pair{false, true}, {true, true}, {true, false}}) {
      const Pair w = values_of({9, 4}, dtype, "w"), bias = has_bias ? values_of({9}, dtype, "bias") : Pair(),
                 tails = output({3, 3, 9}, dtype);
      for (const auto& runs : std::vector<std::vector<CacheRun>>{{{2, 0, 5}, {0, 0, 1}}, {{0, 1, 1}, {2, 5, 1}}}) {
        const CacheTokens tokens = tokens_of(runs);
        const Pair x = values_of({tokens.rows.elements(), 9}, dtype, "x"), y = output(x.cpu.shape(), dtype);
        kernels::short_convolution_decode(host.stream, y.cpu, tails.cpu, x.cpu, {w.cpu, bias.cpu, silu}, tokens);
        kernels::short_convolution_decode(gpu(), y.gpu, tails.gpu, x.gpu, {w.gpu, bias.gpu, silu}, on_gpu(tokens));
        expect_close(y, "y");
      }
    }
}

TEST_F(GatedDeltaTwins, Gates) {
  for (const auto& [dtype, channels] : {std::pair{DType::f32, 1},
                                        {DType::bf16, 1},
                                        {DType::f16, 1},
                                        {DType::f64, 1},
                                        {DType::f32, 40},
                                        {DType::bf16, 40},
                                        {DType::f64, 40}}) {
    const int64_t C = 6 * channels;
    const Shape of_decays = {777, C}, of_heads = {777, 6};
    const DType wide = accumulator(dtype);
    const Pair a = values_of(of_decays, dtype, "a", 3), b = values_of(of_heads, dtype, "b"),
               A = values_of({6}, wide, "A"), bias = values_of({C}, wide, "bias"),
               dg = values_of(of_decays, wide, "dg"), dbeta = values_of(of_heads, wide, "dbeta");
    const Pair g = output(of_decays, wide), beta = output(of_heads, wide), da = output(of_decays, dtype),
               db = output(of_heads, dtype), dA = output({6}, wide), dbias = output({C}, wide);
    kernels::delta_gates_forward(host.stream, g.cpu, beta.cpu, a.cpu, b.cpu, A.cpu, bias.cpu);
    kernels::delta_gates_forward(gpu(), g.gpu, beta.gpu, a.gpu, b.gpu, A.gpu, bias.gpu);
    kernels::delta_gates_backward(host.stream, {da.cpu, db.cpu, dA.cpu, dbias.cpu}, dg.cpu, dbeta.cpu, a.cpu, b.cpu,
                                  A.cpu, bias.cpu);
    kernels::delta_gates_backward(gpu(), {da.gpu, db.gpu, dA.gpu, dbias.gpu}, dg.gpu, dbeta.gpu, a.gpu, b.gpu, A.gpu,
                                  bias.gpu);
    expect_close(g, "g");
    expect_close(beta, "beta");
    expect_close(da, "da");
    expect_close(db, "db");
    expect_close(dA, "dA", 1000);
    expect_close(dbias, "dbias", 1000);
  }
}

TEST_F(GatedDeltaTwins, NormsWithAGate) {
  for (const DType dtype : kDTypes)
    for (const Shape& shape : {Shape{1, 1}, Shape{777, 40}, Shape{9, 128}, Shape{50, 300}}) {
      const Pair x = values_of(shape, dtype, "x"), z = values_of(shape, dtype, "z"),
                 w = values_of({shape.last()}, accumulator(dtype), "w"), dy = values_of(shape, dtype, "dy");
      const Pair y = output(shape, dtype), r = output({shape[0]}, accumulator(dtype)), dx = output(shape, dtype),
                 dz = output(shape, dtype), dw = output({shape.last()}, accumulator(dtype));
      kernels::gated_rmsnorm_forward(host.stream, y.cpu, r.cpu, x.cpu, z.cpu, w.cpu, 1e-6);
      kernels::gated_rmsnorm_forward(gpu(), y.gpu, r.gpu, x.gpu, z.gpu, w.gpu, 1e-6);
      expect_close(y, "y");
      kernels::gated_rmsnorm_backward(host.stream, {dx.cpu, dz.cpu, dw.cpu}, dy.cpu, x.cpu, z.cpu, w.cpu, r.cpu);
      kernels::gated_rmsnorm_backward(gpu(), {dx.gpu, dz.gpu, dw.gpu}, dy.gpu, x.gpu, z.gpu, w.gpu, r.gpu);
      expect_close(dx, "dx");
      expect_close(dz, "dz");
      expect_close(dw, "dw", 1000);
    }
}

TEST_F(GatedDeltaTwins, ForwardAndBackward) {
  for (const DType dtype : kDTypes)
    for (const Rule& rule : kRules) {
      const DeltaHeads& heads = rule.heads;
      if (!fits(heads, dtype)) continue;
      SCOPED_TRACE(cat(heads.key_dim, " channels of keys, ", rule.decays(), " decays"));
      const Inputs in = inputs(2, rule, dtype);
      const Pair d_o = values_of({2, kRowTokens, heads.value_channels()}, dtype, "do");
      const Pair o = output(d_o.cpu.shape(), dtype),
                 last = output({2, heads.values, heads.key_dim, heads.value_dim}, accumulator(dtype));
      kernels::gated_delta_forward(host.stream, o.cpu, last.cpu, in.cpu());
      kernels::gated_delta_forward(gpu(), o.gpu, last.gpu, in.gpu(), memory(in, false));
      expect_close(o, "o");
      // On tensor cores the operands of float32 sums are rounded.
      expect_close(last, "last", dtype == DType::bf16 ? 1000 : 100);
      const Pair dqkv = output(in.qkv.cpu.shape(), dtype), dg = output(in.g.cpu.shape(), accumulator(dtype)),
                 dbeta = output(in.beta.cpu.shape(), accumulator(dtype));
      kernels::gated_delta_backward(host.stream, {dqkv.cpu, dg.cpu, dbeta.cpu}, d_o.cpu, in.cpu());
      const kernels::DeltaGradients to = gradients(in);
      kernels::gated_delta_backward(gpu(), to, d_o.gpu, in.gpu());
      expect_close({dqkv.cpu, to.dqkv}, "dqkv", 30);
      expect_close({dg.cpu, to.dg}, "dg", 1000);
      expect_close({dbeta.cpu, to.dbeta}, "dbeta", 1000);
    }
}

// A rounding to bfloat16 is a distance of 1.7e-3, and products have operands that were rounded before.
TEST_F(GatedDeltaTwins, TensorCoresAgreeWithFloat64) {
  const char* const names[] = {"o", "last", "dqkv", "dg", "dbeta"};
  for (const Rule& rule : {Rule{kHeads[0]}, Rule{kHeads[1]}, Rule{{2, 6, 96, 72}}, Rule{{1, 1, 8, 8}},
                           Rule{kOwnKeys[0], Decay::of_channels}, Rule{kOwnKeys[1], Decay::of_channels},
                           Rule{{2, 2, 96, 72}, Decay::of_channels}, Rule{{1, 1, 8, 8}, Decay::of_channels}}) {
    const DeltaHeads& heads = rule.heads;
    const Inputs in = inputs(2, rule, DType::bf16);
    const Pair d_o = values_of({2, kRowTokens, heads.value_channels()}, DType::bf16, "do");
    const std::vector<Tensor> found = all_of(in, d_o.gpu), again = all_of(in, d_o.gpu), exact = exactly(in, d_o.cpu);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_LT(distance(found[i], exact[i]), 6e-3)
          << names[i] << ", " << heads.key_dim << " x " << heads.value_dim << ", " << rule.decays() << " decays";
      EXPECT_EQ(values(found[i]), values(again[i])) << names[i];
    }
  }
}

// Channels that keep everything, that forget everything in a token, and both side by side: e^(γ[i] - γ[j]) lies between
// 1 and e^-1280 in a chunk, and e^-γ overflows.
TEST_F(GatedDeltaTwins, DecaysOfChannelsOfAnyStrengthAgreeWithFloat64) {
  const char* const names[] = {"o", "last", "dqkv", "dg", "dbeta"};
  double (*const decays[])(double) = {[](double) { return 0.0; }, [](double) { return -20.0; },
                                      [](double x) { return x > 0 ? -1e-4 * x : 16 * x; }};
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const DeltaHeads& heads : kOwnKeys)
      for (const auto& decay : decays) {
        const Inputs in = inputs(1, {heads, Decay::of_channels}, dtype, decay);
        const Pair d_o = values_of({1, kRowTokens, heads.value_channels()}, dtype, "do");
        const std::vector<Tensor> found = all_of(in, d_o.gpu), exact = exactly(in, d_o.cpu);
        for (size_t i = 0; i < found.size(); ++i)
          EXPECT_LT(distance(found[i], exact[i]), dtype == DType::bf16 ? 6e-3 : 1e-4)
              << names[i] << ", " << dtype << ", " << heads.key_dim << " channels, decay " << decay(1) << " and "
              << decay(-1);
      }
}

// The state before a row's first token reaches the tokens of its first document alone.
TEST_F(GatedDeltaTwins, ForwardsContinueAState) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const Rule& rule : kRules) {
      const DeltaHeads& heads = rule.heads;
      Inputs in = inputs(2, rule, dtype);
      in.first = values_of({2, heads.values, heads.key_dim, heads.value_dim}, accumulator(dtype), "first");
      for (const bool packed : {true, false}) {
        if (!packed) in.ids = {};
        const Shape of_outputs{2, kRowTokens, heads.value_channels()};
        const Pair o = output(of_outputs, dtype), last = output(in.first.cpu.shape(), accumulator(dtype));
        kernels::gated_delta_forward(host.stream, o.cpu, last.cpu, in.cpu());
        kernels::gated_delta_forward(gpu(), o.gpu, last.gpu, in.gpu(), memory(in, false));
        EXPECT_LT(distance(to_host(o.gpu), in_float64(o.cpu)), dtype == DType::bf16 ? 8e-3 : 1e-5) << rule.decays();
        EXPECT_LT(distance(to_host(last.gpu), in_float64(last.cpu)), dtype == DType::bf16 ? 6e-3 : 1e-5)
            << rule.decays();
      }
    }
}

TEST_F(GatedDeltaTwins, PackingChangesNoBitOfADocument) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Rule& rule : kRules) {
      const DeltaHeads& heads = rule.heads;
      const Inputs packed = inputs(1, rule, dtype);
      const Pair d_o = values_of({1, kRowTokens, heads.value_channels()}, dtype, "do");
      const std::vector<Tensor> together = all_of(packed, d_o.gpu);
      int64_t begin = 0;
      for (const int64_t count : kDocuments) {
        const auto part = [&](const Tensor& x) { return x.narrow(1, begin, count); };
        Inputs alone = packed;
        for (Pair* x : {&alone.qkv, &alone.g, &alone.beta}) x->gpu = part(x->gpu);
        alone.ids = {};
        const std::vector<Tensor> single = all_of(alone, part(d_o.gpu));
        for (const size_t i : {0, 2, 3, 4})
          EXPECT_EQ(values(single[i]), values(part(together[i])))
              << dtype << ", from token " << begin << ", tensor " << i;
        begin += count;
      }
    }
}

TEST_F(GatedDeltaTwins, Steps) {
  for (const DType dtype : kDTypes)
    for (const Rule& rule : kRules) {
      const DeltaHeads& heads = rule.heads;
      const Pair states = output({3, heads.values, heads.key_dim, heads.value_dim}, accumulator(dtype));
      for (const auto& runs : std::vector<std::vector<CacheRun>>{{{2, 0, 5}, {0, 0, 1}}, {{0, 1, 1}, {2, 5, 1}}}) {
        const CacheTokens tokens = tokens_of(runs);
        const int64_t T = tokens.rows.elements();
        const Pair qkv = values_of({T, heads.channels()}, dtype, "qkv"),
                   g = numbers({T, rule.decays()}, dtype, "g", usual_decay), beta = strengths({T, heads.values}, dtype);
        const Pair o = output({T, heads.value_channels()}, dtype);
        kernels::gated_delta_decode(host.stream, o.cpu, states.cpu, {qkv.cpu, g.cpu, beta.cpu, {}, heads}, tokens);
        kernels::gated_delta_decode(gpu(), o.gpu, states.gpu, {qkv.gpu, g.gpu, beta.gpu, {}, heads}, on_gpu(tokens));
        expect_close(o, "o");
      }
    }
}

// Whole forwards on the GPU against steps that continue chunks: by single tokens, and by several.
TEST_F(GatedDeltaTwins, ChunkStepsHaveTheBitsOfTheForward) {
  constexpr int64_t S = 150;
  for (const DType dtype : kDTypes)
    for (const Rule& rule : kRules) {
      const DeltaHeads& heads = rule.heads;
      if (!fits(heads, dtype)) continue;
      const Tensor qkv = values_of({1, S, heads.channels()}, dtype, "qkv").gpu,
                   g = numbers({1, S, rule.decays()}, dtype, "g", usual_decay).gpu,
                   beta = strengths({1, S, heads.values}, dtype).gpu;
      const auto pass = [&](const ChunkPass& of) {
        const kernels::DeltaInputs in{of.inputs[0], of.inputs[1], of.inputs[2], {}, heads, of.first};
        kernels::gated_delta_forward(gpu(), of.o, of.last, in, kernels::delta_memory(gpu(), in, false));
      };
      const Tensor whole = gpu().empty({1, S, heads.value_channels()}, dtype);
      pass({whole, {}, {}, {qkv, g, beta}});
      const auto rows = [](const Tensor& x) { return x.reshape({x.size(1), x.size(2)}); };
      const auto kept = [&](const Tensor& x) { return gpu().zeros({2, kernels::kDeltaChunk, x.size(2)}, x.dtype()); };
      const std::vector<ChunkInput> in = {{rows(qkv), kept(qkv)}, {rows(g), kept(g)}, {rows(beta), kept(beta)}};
      const Tensor states = gpu().empty({2, heads.values, heads.key_dim, heads.value_dim}, accumulator(dtype));
      for (const auto& counts : std::vector<std::vector<int64_t>>{
               std::vector<int64_t>(S, 1), {70, 1, 1, 1, 1, 1, 75}, {64, 64, 22}, {3, 147}}) {
        const Tensor o = gpu().empty({S, heads.value_channels()}, dtype);
        int64_t past = 0;
        for (const int64_t count : counts) {
          std::vector<ChunkInput> step;
          for (const ChunkInput& input : in) step.push_back({input.x.narrow(0, past, count), input.kept});
          ChunkSteps(gpu(), o.narrow(0, past, count), states, step, pass).run(on_gpu(tokens_of({{1, past, count}})));
          past += count;
        }
        EXPECT_EQ(values(to_host(o)), values(to_host(whole))) << dtype << ", " << counts.size() << " steps";
      }
    }
}

}  // namespace
}  // namespace witan
