// Muon's orthogonalization on a GPU for the reference models' matrices: a batch as in the optimizer, and on Hopper each
// of its products alone. The limit is the time of the FLOPs at the rate of large dense products. Operands are random,
// since data that toggles fewer bits runs faster than in training. The last lines are a step of the MoE reference.
//   cuda_newton_schulz_bench [text that names must contain]
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/optimizer/cuda/gram_products.h"
#include "witan/optim/newton_schulz.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/timing.h"

namespace witan {
namespace {

constexpr double kPeakFlops = 790e12;            // H200, measured: dense products
constexpr int64_t kElements = int64_t{1} << 26;  // per batch, as in optim/muon.cpp

struct Problem {
  const char* name;
  int64_t rows, columns, of_reference;  // matrices of the MoE reference
};
constexpr Problem kProblems[] = {{"gate and up", 1792, 512, 24 * 64 * 2},
                                 {"down", 512, 1792, 24 * 64},
                                 {"q and output", 512, 512, 24 * 2},
                                 {"k and v", 128, 512, 24 * 2},
                                 {"4096 x 14336", 4096, 14336, 0}};

class Bench {
 public:
  Bench() : pool_(1), stream_({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{16} << 30), pool_) {}

  // Seconds for all matrices of the reference.
  double whole(const Problem& p, const NewtonSchulz& iteration) {
    const int64_t n = batch_of(p);
    const Tensor x = random({n, p.rows, p.columns});
    const double seconds = median_seconds(stream_, 0.2, [&] { orthogonalize(stream_, x, iteration); });
    const auto batches = static_cast<double>((p.of_reference + n - 1) / n);
    line(cat(p.name, ": ", n, " of ", p.rows, " x ", p.columns), seconds,
         static_cast<double>(n) * iteration.least_flops(p.rows, p.columns));
    std::printf("%-54s %28.1f TFLOP/s of steps on X itself\n", "",
                static_cast<double>(n) * iteration.flops(p.rows, p.columns) / seconds * 1e-12);
    return batches * seconds;
  }
  // Counts only the FLOPs that a product actually computes.
  void products(const Problem& p) {
    namespace twins = kernels::cuda;
    const int64_t n = batch_of(p), m = std::min(p.rows, p.columns), large = std::max(p.rows, p.columns);
    const Tensor x = random({n, p.rows, p.columns}), y = random(x.shape());
    const Tensor a = random({n, m, m}), b = random({n, m, m}), d = random({n, m, m});
    const double square = 2.0 * static_cast<double>(n * m * m), share = kernels::hopper_gram_share(m);
    const auto of = [&](const char* what, double flops, const auto& call) {
      line(cat("  ", what), median_seconds(stream_, 0.1, call), flops);
    };
    of("X X^T", share * square * static_cast<double>(large), [&] { twins::hopper_gram(stream_, d, x); });
    of("a I + b R + c R R", share * square * static_cast<double>(m), [&] {
      twins::hopper_symmetric_product(stream_, d, a, a, a, {1e-6f, 1e-3f, 1.0f});
    });
    of("P R", share * square * static_cast<double>(m),
       [&] { twins::hopper_symmetric_product(stream_, d, a, b, {}, {}); });
    of("Q X", square * static_cast<double>(large), [&] { twins::hopper_apply(stream_, y, a, x, {}); });
  }

 private:
  static int64_t batch_of(const Problem& p) {
    const int64_t fit = std::max<int64_t>(kElements / (p.rows * p.columns), 1);
    return kernels::hopper_gram_batch(std::min(p.rows, p.columns), std::max(p.of_reference, fit), fit);
  }
  Tensor random(const Shape& shape) {
    const Tensor out = stream_.empty(shape, DType::bf16);
    fill_normal(stream_, out, ++seed_);
    return out;
  }
  static void line(const std::string& name, double seconds, double flops) {
    std::printf("%-54s %9.3f ms %8.1f TFLOP/s %6.2f of the floor\n", name.c_str(), seconds * 1e3,
                flops / seconds * 1e-12, flops / kPeakFlops / seconds);
    std::fflush(stdout);
  }

  ThreadPool pool_;
  Stream stream_;
  uint64_t seed_ = 0;
};

void run(std::string_view wanted) {
  Bench bench;
  std::printf("%s\n", cuda::properties(0).name.c_str());
  const NewtonSchulz quintic = NewtonSchulz::of("quintic", 5);
  double reference = 0, floor = 0;
  for (const Problem& p : kProblems) {
    if (std::string_view(p.name).find(wanted) == std::string_view::npos) continue;
    const double seconds = bench.whole(p, quintic);
    if (cuda::properties(0).hopper_kernels) bench.products(p);
    reference += p.of_reference > 0 ? seconds : 0;
    floor += static_cast<double>(p.of_reference) * quintic.least_flops(p.rows, p.columns) / kPeakFlops;
  }
  std::printf("all matrices of the MoE reference above: %.1f ms, %.2f of the floor of %.1f ms\n", reference * 1e3,
              floor / reference, floor * 1e3);
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  if (witan::cuda::devices() == 0) {
    std::fprintf(stderr, "%s\n", witan::cuda::why_none().c_str());
    return static_cast<int>(witan::ExitCode::device);
  }
  witan::run(argc > 1 ? argv[1] : "");
}
