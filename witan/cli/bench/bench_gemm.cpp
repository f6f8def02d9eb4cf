// witan bench gemm: measures the three products of a linear layer.
#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "witan/cli/args/options.h"
#include "witan/cli/bench/bench.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/tensor/cuda.h"

namespace witan::cli {
namespace {

using kernels::Transpose;

struct GemmArgs {
  BenchArgs args;
  std::vector<std::string> layers;
  int64_t tokens = 0;
  std::string dtype;
};

// The sizes of a weight [out, in].
struct Layer {
  int64_t in, out;
};

std::vector<Layer> layers_of(const GemmArgs& state, bool on_gpu) {
  if (state.layers.empty() && on_gpu) return {{512, 768}, {512, 512}, {512, 3584}, {1792, 512}, {512, 128256}};
  if (state.layers.empty()) return {{256, 256}, {256, 1024}, {512, 256}, {256, 4096}};
  std::vector<Layer> layers;
  for (const std::string& text : state.layers) {
    Layer layer{};
    char rest = 0;
    const int read = std::sscanf(text.c_str(), "%ldx%ld%c", &layer.in, &layer.out, &rest);
    require<UsageError>(read == 2 && layer.in > 0 && layer.out > 0, "witan bench gemm: --layers ", text,
                        ": give a layer as INxOUT, for example 512x768");
    layers.push_back(layer);
  }
  return layers;
}

// The operands and result of one product.
struct Operands {
  Tensor a, b, c;
};

struct Product {
  std::string name;
  Shape a, b, c;
  Transpose transpose_a, transpose_b;
  DType out;
  Write write = Write::overwrite;
};

// Calls rotate through more operands than a GPU's L2 cache holds, as in a step.
void measure(Bench& bench, const Product& p, DType in) {
  constexpr int64_t kMostSets = 64;
  const double beyond = bench.on_gpu() ? 2.0 * static_cast<double>(cuda::properties(0).l2) : 0;
  std::vector<Operands> sets;
  double bytes = 0;
  do {
    sets.push_back({bench.normal(p.a, in), bench.normal(p.b, in), bench.normal(p.c, p.out)});
    bytes += kernels::bytes_of(sets.back().a, sets.back().b, sets.back().c);
  } while (bytes < beyond && std::ssize(sets) < kMostSets);
  size_t turn = 0;
  bench.measure(p.name, [&] {
    const Operands& set = sets[turn++ % sets.size()];
    kernels::gemm(bench.stream(), set.c, p.write, set.a, p.transpose_a, set.b, p.transpose_b);
  });
}

void measure_layer(Bench& bench, const Layer& layer, int64_t T, DType dtype) {
  const auto [in, out] = layer;
  const auto name = [&, in = in, out = out](const char* what) { return fmt::format("{} -> {} {}", in, out, what); };
  const Shape x{T, in}, y{T, out}, w{out, in};
  const auto no = Transpose::no, yes = Transpose::yes;
  measure(bench, {name("forward"), x, w, y, no, yes, dtype}, dtype);
  measure(bench, {name("input gradient"), y, w, x, no, no, dtype}, dtype);
  measure(bench, {name("weight gradient"), y, x, w, yes, no, dtype}, dtype);
  // The gradient of a step's other micro-batches is added to that of the first.
  const DType sums = size_of(dtype) == 2 ? DType::f32 : dtype;
  if (sums != dtype) measure(bench, {name("weight gradient, float32"), y, x, w, yes, no, sums}, dtype);
  measure(bench, {name("weight gradient, added"), y, x, w, yes, no, sums, Write::accumulate}, dtype);
}

ExitCode bench_gemm(Context& context, const GemmArgs& state) {
  const bool on_gpu = bench_device(state.args.device).kind == Device::Kind::cuda;
  const int64_t tokens = state.tokens > 0 ? state.tokens : on_gpu ? 16384 : 1024;
  const DType dtype = bench_dtype(state.dtype, on_gpu);
  const auto layers = layers_of(state, on_gpu);
  const BenchReport report =
      run_bench(fmt::format("gemm, {} tokens, {}", tokens, name_of(dtype)), state.args, [&](Bench& bench) {
        for (const Layer& layer : layers) measure_layer(bench, layer, tokens, dtype);
      });
  finish_report(context, state.args.json, report);
  return ExitCode::done;
}

}  // namespace

void add_bench_gemm(CLI::App& bench, Context& context) {
  auto state = std::make_shared<GemmArgs>();
  CLI::App* command = add_command(
      bench, context,
      {"gemm", "Measure matrix products: the forward and both gradients of linear layers",
       "Without --layers: the layers of the reference MoE on a GPU, of the default recipe on a CPU.",
       "witan bench gemm\nwitan bench gemm --tokens 4096 --layers 1024x4096,4096x1024 --dtype float32", Processes::one},
      [&context, state] { return bench_gemm(context, *state); });
  add_option(*command, "--layers", state->layers, "Input and output sizes: 512x768,512x512")
      .delimiter(',')
      .type_name("INxOUT")
      .group("shapes");
  add_size(*command, "--tokens", state->tokens, "Rows (0: 16384 on a GPU, 1024 on a CPU)", 0);
  add_dtype(*command, state->dtype);
  add_bench_args(*command, state->args);
}

}  // namespace witan::cli
