// Attention forward, backward and decoding, also with dropout of 0.1: time per call, and FLOP/s of the causal half
// only, counted as in kernels/attention/cost.cpp.
#include <benchmark/benchmark.h>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/attention/attention.h"

namespace witan {
namespace {

Tensor random_tensor(Stream& stream, const Shape& shape, DType dtype, uint64_t name) {
  Tensor out = stream.empty(shape, dtype);
  const Philox rng(1, name);
  dispatch_floating(dtype, [&]<class T>() {
    for (int64_t i = 0; i < out.elements(); ++i) out.data<T>()[i] = T(rng.normal(static_cast<uint64_t>(i)));
  });
  return out;
}

// B, S, H, G, hd, threads; for decoding, S is the length of the cache and there is one query.
struct Setting {
  explicit Setting(const benchmark::State& state, DType dtype_, bool decode = false)
      : dtype(dtype_),
        pool(static_cast<int>(state.range(5))),
        stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 30), pool),
        queries{state.range(0), decode ? 1 : state.range(1), state.range(2), state.range(4)},
        keys{state.range(0), state.range(1), state.range(3), state.range(4)} {}

  Tensor random_queries(uint64_t name) { return random_tensor(stream, queries, dtype, name); }
  Tensor random_keys(uint64_t name) { return random_tensor(stream, keys, dtype, name); }
  kernels::Dropout dropout(double p) {
    return {.p = p, .seed = 1, .step = stream.zeros({kernels::kStepValues}, DType::f64)};
  }
  void count(benchmark::State& state) const {
    state.counters["FLOP/s"] = benchmark::Counter(stream.flops(), benchmark::Counter::kIsRate);
  }

  DType dtype;
  ThreadPool pool;
  Stream stream;
  Shape queries, keys;
};

void forward(benchmark::State& state, DType dtype, double dropout = 0) {
  Setting s(state, dtype);
  const kernels::AttentionInputs in{s.random_queries(1), s.random_keys(2), s.random_keys(3), Tensor(), 0.125,
                                    s.dropout(dropout)};
  const Tensor y = s.stream.empty_like(in.q);
  const Tensor lse = s.stream.empty({in.q.size(0), in.q.size(2), in.q.size(1)}, DType::f32);
  for (auto _ : state) kernels::attention_forward(s.stream, y, lse, in);
  s.count(state);
}

void backward(benchmark::State& state, DType dtype, double dropout = 0) {
  Setting s(state, dtype);
  const kernels::AttentionInputs in{s.random_queries(1), s.random_keys(2), s.random_keys(3), Tensor(), 0.125,
                                    s.dropout(dropout)};
  const Tensor y = s.stream.empty_like(in.q), dy = s.random_queries(4);
  const Tensor lse = s.stream.empty({in.q.size(0), in.q.size(2), in.q.size(1)}, DType::f32);
  const kernels::AttentionGradients to{s.stream.empty_like(in.q), s.stream.empty_like(in.k), s.stream.empty_like(in.v)};
  kernels::attention_forward(s.stream, y, lse, in);
  s.stream.reset_costs();
  for (auto _ : state) kernels::attention_backward(s.stream, to, dy, y, lse, in);
  s.count(state);
}

void decode(benchmark::State& state, DType dtype) {
  Setting s(state, dtype, true);
  const Tensor q = s.random_queries(1), k = s.random_keys(2), v = s.random_keys(3), y = s.stream.empty_like(q);
  for (auto _ : state) kernels::attention_decode(s.stream, y, q, k, v, k.size(1) - 1, 0.125);
  s.count(state);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"B", "S", "H", "G", "hd", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (const int64_t threads : {1, usable_cores()}) {
    bench->Args({8, 128, 4, 2, 64, threads});
    bench->Args({16, 256, 4, 2, 64, threads});
    bench->Args({2, 2048, 4, 2, 64, threads});
    bench->Args({1, 2048, 16, 16, 128, threads});
  }
}

BENCHMARK_CAPTURE(forward, f32, DType::f32)->Apply(shapes);
BENCHMARK_CAPTURE(forward, f32_dropout, DType::f32, 0.1)->Apply(shapes);
BENCHMARK_CAPTURE(forward, bf16, DType::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(backward, f32, DType::f32)->Apply(shapes);
BENCHMARK_CAPTURE(backward, f32_dropout, DType::f32, 0.1)->Apply(shapes);
BENCHMARK_CAPTURE(backward, bf16, DType::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(decode, f32, DType::f32)->Apply(shapes);

}  // namespace
}  // namespace witan

BENCHMARK_MAIN();
