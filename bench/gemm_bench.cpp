// Matrix products at the shapes of the default model, against the machine's peak: the rate of multiply-adds between
// registers, measured in this program on one thread, times the threads. `of_peak` is the share that is reached.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/rng.h"
#include "witan/base/threads.h"
#include "witan/kernels/cpu/gemm_vector.h"
#include "witan/kernels/gemm.h"
#include "witan/kernels/grouped_gemm.h"

namespace witan {
namespace {

using kernels::Transpose;
using kernels::cpu::kLanes;
using kernels::cpu::Vector;

// Twelve independent chains hide the latency of a multiply-add on any core with up to three units.
template <class T>
double multiply_adds(int64_t rounds) {
  Vector<T> sums[12], factor = Vector<T>{} + T(0.999), term = Vector<T>{} + T(0.001);
  for (auto& sum : sums) sum = term;
  asm volatile("" : "+m"(factor), "+m"(term));
  const Vector<T> a = factor, b = term;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = sum * a + b;
  }
  for (auto& sum : sums) benchmark::DoNotOptimize(sum);
  return 2.0 * 12 * kLanes<T> * static_cast<double>(rounds);
}

// FLOP/s of one core, the best of ten runs.
template <class T>
double peak() {
  static const double best = [] {
    double most = 0;
    for (int i = 0; i < 10; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const double flops = multiply_adds<T>(4'000'000);
      most = std::max(most, flops / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return most;
  }();
  return best;
}

struct Machine {
  explicit Machine(int threads) : pool(threads), stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 30), pool) {}

  Tensor normal(const Shape& shape, DType dtype, std::string_view name) {
    Tensor out = stream.empty(shape, dtype);
    const Philox rng(1, Philox::stream_of(name));
    dispatch_floating(dtype, [&]<class T>() {
      for (int64_t i = 0; i < out.elements(); ++i) out.data<T>()[i] = T(rng.normal(static_cast<uint64_t>(i)));
    });
    return out;
  }
  Tensor indices(const std::vector<int64_t>& values) {
    Tensor out = stream.empty({std::ssize(values)}, DType::i64);
    std::ranges::copy(values, out.data<int64_t>());
    return out;
  }
  void report(benchmark::State& state, DType dtype) {
    const double ceiling = (dtype == DType::f64 ? peak<double>() : peak<float>()) * pool.threads();
    state.counters["FLOP/s"] = benchmark::Counter(stream.flops(), benchmark::Counter::kIsRate);
    state.counters["of_peak"] = benchmark::Counter(stream.flops() / ceiling, benchmark::Counter::kIsRate);
  }

  ThreadPool pool;
  Stream stream;
};

struct Problem {
  const char* name;
  int64_t M, N, K;
  Transpose a, b;
};
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
// T tokens: forward x w^T, backward input dy w, backward weight dy^T x.
constexpr Problem kProblems[] = {
    {"attention/forward", 1024, 256, 256, kNo, kYes}, {"attention/input", 1024, 256, 256, kNo, kNo},
    {"attention/weight", 256, 256, 1024, kYes, kNo},  {"head/forward", 1024, 4096, 256, kNo, kYes},
    {"head/forward", 2048, 4096, 256, kNo, kYes},     {"head/input", 1024, 256, 4096, kNo, kNo},
    {"head/input", 2048, 256, 4096, kNo, kNo},        {"head/weight", 4096, 256, 1024, kYes, kNo},
    {"head/weight", 4096, 256, 2048, kYes, kNo},      {"decode/head", 1, 4096, 256, kNo, kYes},
    {"square", 1024, 1024, 1024, kNo, kNo},
};

void plain(benchmark::State& state, const Problem& p, DType dtype, int threads) {
  Machine machine(threads);
  const auto matrix = [&](int64_t rows, int64_t columns, Transpose t, const char* name) {
    return machine.normal(t == kYes ? Shape{columns, rows} : Shape{rows, columns}, dtype, name);
  };
  const Tensor a = matrix(p.M, p.K, p.a, "a"), b = matrix(p.K, p.N, p.b, "b");
  const Tensor c = machine.stream.empty({p.M, p.N}, dtype);
  for (auto _ : state) kernels::gemm(machine.stream, c, Write::overwrite, a, p.a, b, p.b);
  machine.report(state, dtype);
}

struct Experts {
  const char* name;
  int64_t N, K;
};
constexpr Experts kExperts[] = {{"w1", 1024, 256}, {"w2", 256, 512}};
enum class Pass : uint8_t { forward, input, weight };
constexpr std::pair<Pass, const char*> kPasses[] = {
    {Pass::forward, "forward"}, {Pass::input, "input"}, {Pass::weight, "weight"}};

void grouped(benchmark::State& state, const Experts& p, Pass pass, int64_t rows, DType dtype, int threads) {
  constexpr int64_t E = 8;
  Machine machine(threads);
  const Tensor x = machine.normal({E * rows, p.K}, dtype, "x"), y = machine.normal({E * rows, p.N}, dtype, "y");
  const Tensor w = machine.normal({E, p.N, p.K}, dtype, "w");
  std::vector<int64_t> begin;
  for (int64_t e = 0; e < E; ++e) begin.push_back(e * rows);
  const RowGroups groups{machine.indices(begin), machine.indices(std::vector<int64_t>(E, rows))};
  for (auto _ : state) {
    switch (pass) {
      case Pass::forward:
        kernels::grouped_gemm_forward(machine.stream, y, x, groups, w, E * rows);
        break;
      case Pass::input:
        kernels::grouped_gemm_backward_input(machine.stream, x, y, groups, w, E * rows);
        break;
      case Pass::weight:
        kernels::grouped_gemm_backward_weight(machine.stream, w, Write::overwrite, y, x, groups, E * rows);
        break;
    }
  }
  machine.report(state, dtype);
}

void add(const std::string& name, auto&& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->Unit(benchmark::kMicrosecond)->UseRealTime()->MinTime(0.2);
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  using namespace witan;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const int threads : {1, 2}) {
      const std::string kind = cat(dtype, "/threads:", threads, "/");
      for (const Problem& p : kProblems)
        add(cat(kind, p.name, "/", p.M, "x", p.N, "x", p.K),
            [&p, dtype, threads](benchmark::State& state) { plain(state, p, dtype, threads); });
      for (const Experts& p : kExperts)
        for (const auto& [pass, pass_name] : kPasses)
          for (const int64_t rows : {1, 3, 17, 256, 512})
            add(cat(kind, p.name, "/", pass_name, "/8x", rows, "x", p.N, "x", p.K),
                [&p, pass = pass, rows, dtype, threads](benchmark::State& state) {
                  grouped(state, p, pass, rows, dtype, threads);
                });
    }
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("float32 peak, GFLOP/s per core", cat(peak<float>() / 1e9));
  benchmark::AddCustomContext("float64 peak, GFLOP/s per core", cat(peak<double>() / 1e9));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
