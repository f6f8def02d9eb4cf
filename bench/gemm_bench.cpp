// Matrix products at the shapes of the default model, one line each: the shortest time per call, its rate, and the
// machine's lower bound, which is the maximum of
//   FLOPs / rate of multiply-adds between registers    and    bytes read and written / memory bandwidth,
// all measured in this program. The bandwidth is that of the smallest memory level that holds the product's operands: a
// cache if one product is repeated ("hot"); main memory if calls rotate through more operands than any cache holds
// ("cold"), like the weights and gradients of a model from one step to the next.
// With one thread, times are the thread's processor time, so that a busy machine disturbs them little.
//   gemm_bench [text that names must contain] [threads]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/gemm/cpu/gemm_vector.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan {
namespace {

using kernels::Transpose;
using kernels::cpu::kLanes;
using kernels::cpu::Vector;

class Clock {
 public:
  explicit Clock(int threads) : id_(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC) {}
  double seconds() const {
    timespec now{};
    clock_gettime(id_, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  // The shortest of the calls within `budget` seconds, at least ten.
  double shortest(double budget, const std::function<void()>& call) const {
    double least = 1e30, spent = 0;
    for (int i = 0; i < 10 || spent < budget; ++i) {
      const double begin = seconds();
      call();
      const double took = seconds() - begin;
      least = std::min(least, took);
      spent += took;
    }
    return least;
  }

 private:
  clockid_t id_;
};

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
  for (auto& sum : sums) asm volatile("" : : "m"(sum));
  return 2.0 * 12 * kLanes<T> * static_cast<double>(rounds);
}

void read_all(const float* data, int64_t elements) {
  constexpr int L = kLanes<float>;
  Vector<float> sums[8] = {};
  for (int64_t i = 0; i + 8 * L <= elements; i += 8 * L)
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      Vector<float> in;
      kernels::cpu::load(in, data + i + j * L);
      sums[j] += in;
    }
  for (auto& sum : sums) asm volatile("" : : "m"(sum));
}

void write_all(float* data, int64_t elements) {
  constexpr int L = kLanes<float>;
  const Vector<float> value = Vector<float>{} + 1.0f;
  for (int64_t i = 0; i + 4 * L <= elements; i += 4 * L)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) kernels::cpu::store(data + i + j * L, value);
  asm volatile("" : : "r"(data) : "memory");
}

struct Level {
  const char* name;
  int64_t holds;       // bytes
  double read, write;  // bytes/s of all threads together
};

class Machine {
 public:
  explicit Machine(int threads)
      : pool_(threads),
        clock_(threads),
        stream_({Device::Kind::cpu}, Arena::reserve(int64_t{2} << 30), pool_),
        peak32_(measure_peak<float>()),
        peak64_(measure_peak<double>()) {
    const int64_t second = cache_bytes(2, 1 << 20) * threads;
    const int64_t third = std::max(cache_bytes(3, 32 << 20), second);
    const Tensor room = stream_.empty({third}, DType::f32);  // four times the cache
    levels_ = {measure("L2", second, second / 2, room), measure("L3", third, third / 4, room),
               measure("memory", INT64_MAX, room.bytes(), room)};
  }

  Stream& stream() { return stream_; }
  const std::vector<Level>& levels() const { return levels_; }
  int64_t beyond_caches() const { return 3 * levels_[1].holds; }
  double peak(DType dtype) const { return dtype == DType::f64 ? peak64_ : peak32_; }
  const Clock& clock() const { return clock_; }

  Tensor normal(const Shape& shape, DType dtype) {
    Tensor out = stream_.empty(shape, dtype);
    const Philox rng(1, ++tensors_);
    dispatch_floating(dtype, [&]<class T>() {
      for (int64_t i = 0; i < out.elements(); ++i)
        out.data<T>()[i] = i < 4096 ? T(rng.normal(static_cast<uint64_t>(i))) : out.data<T>()[i - 4096];
    });
    return out;
  }
  Tensor indices(const std::vector<int64_t>& values) {
    Tensor out = stream_.empty({std::ssize(values)}, DType::i64);
    std::ranges::copy(values, out.data<int64_t>());
    return out;
  }

 private:
  static int64_t cache_bytes(int level, int64_t otherwise) {
    std::ifstream file(cat("/sys/devices/system/cpu/cpu0/cache/index", level, "/size"));
    int64_t kibibytes = 0;
    return file >> kibibytes ? kibibytes << 10 : otherwise;
  }
  template <class T>
  double measure_peak() {
    double flops = 0;
    const double seconds = clock_.shortest(0.1, [&] { flops = multiply_adds<T>(100'000); });
    return flops / seconds * pool_.threads();
  }
  Level measure(const char* name, int64_t holds, int64_t bytes, const Tensor& room) {
    const int64_t threads = pool_.threads(), each = bytes / 4 / threads;
    float* data = room.data<float>();
    const auto rate = [&](const auto& body) {
      return static_cast<double>(bytes) /
             clock_.shortest(0.2, [&] { pool_.run(threads, [&](int64_t i) { body(data + i * each, each); }); });
    };
    const double write = rate(write_all);  // first, so that pages exist when reading
    return {name, holds, rate(read_all), write};
  }

  ThreadPool pool_;
  Clock clock_;
  Stream stream_;
  double peak32_, peak64_;
  std::vector<Level> levels_;
  uint64_t tensors_ = 0;
};

// One line of the table. `call(i)` is the product on the i-th set of operands, each of which is read or written once.
void line(Machine& machine, const std::string& name, DType dtype, double flops, double read, double written,
          int64_t sets, const std::function<void(int64_t set)>& call) {
  int64_t set = 0;
  for (int64_t i = 0; i < sets; ++i) call(i);
  const double seconds = machine.clock().shortest(0.25, [&] { call(set++ % sets); });
  const Level& level = *std::ranges::find_if(machine.levels(), [&](const Level& l) {
    return static_cast<double>(sets) * (read + written) <= static_cast<double>(l.holds);
  });
  const double compute = flops / machine.peak(dtype), move = read / level.read + written / level.write;
  const double floor = std::max(compute, move);
  std::printf("%-42s %9.0f %8.1f %9.0f %7.2f  %s\n", name.c_str(), seconds * 1e6, flops / seconds * 1e-9, floor * 1e6,
              floor / seconds, compute > move ? "multiply-adds" : level.name);
  std::fflush(stdout);
}

struct Problem {
  const char* name;
  int64_t M, N, K;
  Transpose a, b;
};
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
// T tokens: forward x w^T, backward input dy w, backward weight dy^T x.
constexpr Problem kProblems[] = {
    {"attention forward", 1024, 256, 256, kNo, kYes}, {"attention input", 1024, 256, 256, kNo, kNo},
    {"attention weight", 256, 256, 1024, kYes, kNo},  {"head forward", 1024, 4096, 256, kNo, kYes},
    {"head input", 1024, 256, 4096, kNo, kNo},        {"head weight", 4096, 256, 1024, kYes, kNo},
    {"decoding: head", 1, 4096, 256, kNo, kYes},      {"square", 1024, 1024, 1024, kNo, kNo},
};

void plain(Machine& machine, const Problem& p, DType dtype, const std::string& name) {
  const auto matrix = [&](int64_t rows, int64_t columns, Transpose t) {
    return machine.normal(t == kYes ? Shape{columns, rows} : Shape{rows, columns}, dtype);
  };
  const Tensor a = matrix(p.M, p.K, p.a), b = matrix(p.K, p.N, p.b);
  const Tensor c = machine.stream().empty({p.M, p.N}, dtype);
  line(machine, name, dtype, 2.0 * static_cast<double>(p.M * p.N * p.K), kernels::bytes_of(a, b), kernels::bytes_of(c),
       1, [&](int64_t) { kernels::gemm(machine.stream(), c, Write::overwrite, a, p.a, b, p.b); });
}

constexpr int64_t kExperts = 8;
struct Experts {
  const char* name;
  int64_t N, K;
};
constexpr Experts kExpertProducts[] = {{"w1", 1024, 256}, {"w2", 256, 512}};
enum class Pass : uint8_t { forward, input, weight, weight_added };
constexpr std::pair<Pass, const char*> kPasses[] = {{Pass::forward, "forward"},
                                                    {Pass::input, "input"},
                                                    {Pass::weight, "weight"},
                                                    {Pass::weight_added, "weight, added"}};

// x, y and w, or the gradient of w, of one layer.
struct Operands {
  Tensor x, y, w;
};

void grouped(Machine& machine, const Experts& p, Pass pass, int64_t rows, DType dtype, bool cold,
             const std::string& name) {
  const int64_t T = kExperts * rows;
  const double bytes = static_cast<double>((T * (p.N + p.K) + kExperts * p.N * p.K) * size_of(dtype));
  std::vector<Operands> sets;
  do
    sets.push_back({machine.normal({T, p.K}, dtype), machine.normal({T, p.N}, dtype),
                    machine.normal({kExperts, p.N, p.K}, dtype)});
  while (cold && static_cast<double>(std::ssize(sets)) * bytes < static_cast<double>(machine.beyond_caches()));
  std::vector<int64_t> begin;
  for (int64_t e = 0; e < kExperts; ++e) begin.push_back(e * rows);
  const RowGroups groups{machine.indices(begin), machine.indices(std::vector<int64_t>(kExperts, rows))};
  const auto& [x, y, w] = sets[0];
  const double written = pass == Pass::forward ? kernels::bytes_of(y)
                         : pass == Pass::input ? kernels::bytes_of(x)
                                               : kernels::bytes_of(w);
  const double read = bytes - (pass == Pass::weight_added ? 0 : written);
  line(machine, name, dtype, 2.0 * static_cast<double>(T * p.N * p.K), read, written, std::ssize(sets),
       [&](int64_t set) {
         const Operands& o = sets[static_cast<size_t>(set)];
         switch (pass) {
           case Pass::forward:
             return kernels::grouped_gemm_forward(machine.stream(), o.y, o.x, groups, o.w);
           case Pass::input:
             return kernels::grouped_gemm_backward_input(machine.stream(), o.x, o.y, groups, o.w);
           case Pass::weight:
           case Pass::weight_added:
             return kernels::grouped_gemm_backward_weight(
                 machine.stream(), {o.w, pass == Pass::weight ? Write::overwrite : Write::accumulate}, o.y, o.x,
                 groups);
         }
       });
}

void run(std::string_view wanted, int threads) {
  Machine machine(threads);
  std::printf("%d thread%s; float32 %.0f, float64 %.0f GFLOP/s\n", threads, threads == 1 ? "" : "s",
              machine.peak(DType::f32) * 1e-9, machine.peak(DType::f64) * 1e-9);
  for (const Level& level : machine.levels())
    std::printf("%-6s read %.0f, written %.0f GB/s\n", level.name, level.read * 1e-9, level.write * 1e-9);
  std::printf("\n%-42s %9s %8s %9s %7s  %s\n", "product", "µs", "GFLOP/s", "floor, µs", "reached", "bound by");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const Problem& p : kProblems) {
      const std::string name = cat(dtype, ' ', p.name, ' ', p.M, 'x', p.N, 'x', p.K);
      if (name.find(wanted) != std::string::npos) plain(machine, p, dtype, name);
    }
    for (const Experts& p : kExpertProducts)
      for (const auto& [pass, pass_name] : kPasses)
        for (const bool cold : {false, true})
          for (const int64_t rows : {1, 3, 17, 64, 256}) {
            const std::string name = cat(dtype, ' ', p.name, ' ', pass_name, ' ', kExperts, 'x', rows, 'x', p.N, 'x',
                                         p.K, cold ? " cold" : " hot");
            if (name.find(wanted) != std::string::npos) grouped(machine, p, pass, rows, dtype, cold, name);
          }
  }
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  witan::run(argc > 1 ? argv[1] : "", argc > 2 ? std::max(std::atoi(argv[2]), 1) : 1);
}
