#include "witan/kernels/gemm/ceiling.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>

namespace witan::kernels {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// As wide as the target's registers, with enough independent chains to hide the latency of an FMA.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#define WITAN_REGISTER(x) "+v"(x)
#elif defined(__AVX__)
constexpr int kLanes = 8;
#define WITAN_REGISTER(x) "+x"(x)
#else
constexpr int kLanes = 4;
#define WITAN_REGISTER(x) "+m"(x)
#endif
constexpr int kChains = 16;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

// Returns a value that depends on every product, so that the compiler removes none.
float multiply_add(int64_t rounds) {
  std::array<Lanes, kChains> sums{};
  Lanes a, b;
  for (int i = 0; i < kLanes; ++i) a[i] = 1 - 1e-7f * static_cast<float>(i), b[i] = 1e-7f;
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (Lanes& sum : sums) sum = sum * a + b;
    asm volatile("" : WITAN_REGISTER(a), WITAN_REGISTER(b));  // keeps the rounds apart
  }
  float total = 0;
  for (const Lanes& sum : sums)
    for (int i = 0; i < kLanes; ++i) total += sum[i];
  return total;
}

}  // namespace

double measure_fma_gflops(ThreadPool& pool) {
  constexpr int64_t kRounds = 200'000;
  constexpr double kFlops = 2.0 * kLanes * kChains * kRounds;
  constexpr double kSeconds =
      0.1;  // an attempt takes a millisecond, so that some are undisturbed even on a busy machine
  double best = 0;
  const auto begin = Clock::now();
  for (int attempt = 0; attempt < 5 || seconds_since(begin) < kSeconds; ++attempt) {
    const auto start = Clock::now();
    pool.run(pool.threads(), [](int64_t) {
      volatile float keep = multiply_add(kRounds);
      static_cast<void>(keep);
    });
    best = std::max(best, kFlops * pool.threads() / seconds_since(start) * 1e-9);
  }
  return best;
}

double measure_copy_gbytes(ThreadPool& pool) {
  constexpr int64_t kBytes = 64 << 20;  // larger than any cache
  const auto from = std::make_unique<char[]>(kBytes), to = std::make_unique<char[]>(kBytes);
  double best = 0;
  for (int attempt = 0; attempt < 4; ++attempt) {  // the first attempt touches the pages
    const auto start = Clock::now();
    pool.run(pool.threads(), [&](int64_t i) {
      const int64_t begin = kBytes * i / pool.threads(), end = kBytes * (i + 1) / pool.threads();
      std::memcpy(to.get() + begin, from.get() + begin, static_cast<size_t>(end - begin));
    });
    best = std::max(best, 2.0 * kBytes / seconds_since(start) * 1e-9);
  }
  return best;
}

double measure_core_share(ThreadPool& pool) {
  const auto process_seconds = [] {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  constexpr double kSeconds = 0.03;
  const auto start = Clock::now();
  const double before = process_seconds();
  // A thread without a core of its own shares another's, and both take longer.
  pool.run(pool.threads(), [](int64_t) {
    const auto begin = Clock::now();
    while (seconds_since(begin) < kSeconds) {
      volatile float keep = multiply_add(1000);
      static_cast<void>(keep);
    }
  });
  const double used = process_seconds() - before;
  return std::min(used / (seconds_since(start) * pool.threads()), 1.0);
}

}  // namespace witan::kernels
