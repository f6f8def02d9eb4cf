// Matrix products on a GPU: those of the reference models with 16,384 tokens (forward, input gradient, weight gradient
// into bfloat16 and float32), the router's in float32 and its alternatives, and a large square, whose rate is the
// ceiling. Random operands: what switches fewer bits runs faster than any training. Operands rotate through more than
// the L2 cache holds, as in a step.
//   cuda_gemm_bench [text that names must contain]
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/timing.h"

namespace witan {
namespace {

using kernels::Transpose;
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;

struct Problem {
  std::string name;
  int64_t M, N, K;
  Transpose a, b;
  DType in, out;
  Write write = Write::overwrite;
};

std::vector<Problem> problems() {
  constexpr int64_t T = 16384;
  constexpr std::pair<int64_t, int64_t> kLayers[] = {{512, 768}, {512, 512}, {512, 3584}, {1792, 512}, {512, 128256}};
  const auto half = DType::bf16, single = DType::f32;
  std::vector<Problem> all;
  for (const auto& [in, out] : kLayers) {
    const std::string layer = cat(in, "->", out, ' ');
    all.push_back({layer + "forward", T, out, in, kNo, kYes, half, half});
    all.push_back({layer + "input gradient", T, in, out, kNo, kNo, half, half});
    all.push_back({layer + "weight gradient", out, in, T, kYes, kNo, half, half});
    all.push_back({layer + "weight gradient", out, in, T, kYes, kNo, half, single});
    all.push_back({layer + "weight gradient, added", out, in, T, kYes, kNo, half, single, Write::accumulate});
  }
  all.push_back({"router forward", T, 64, 512, kNo, kYes, single, single});
  all.push_back({"router forward", T, 64, 512, kNo, kYes, half, single});
  all.push_back({"router input gradient", T, 512, 64, kNo, kNo, single, single});
  all.push_back({"router weight gradient", 64, 512, T, kYes, kNo, single, single});
  all.push_back({"square", 8192, 8192, 8192, kNo, kYes, half, half});
  all.push_back({"square", 8192, 8192, 8192, kNo, kNo, half, half});
  all.push_back({"square", 8192, 8192, 8192, kNo, kYes, single, single});
  all.push_back({"square", 4096, 4096, 4096, kNo, kYes, DType::f64, DType::f64});
  return all;
}

struct Operands {
  Tensor a, b, c;
};

double bytes_of(const Problem& p) {
  return static_cast<double>((p.M + p.N) * p.K * size_of(p.in) +
                             p.M * p.N * size_of(p.out) * (p.write == Write::accumulate ? 2 : 1));
}

void line(Stream& stream, const Problem& p, const std::string& name) {
  const double beyond_cache = 2.0 * static_cast<double>(cuda::properties(stream.device().index).l2);
  std::vector<Operands> sets;
  do {
    sets.push_back({stream.empty(p.a == kYes ? Shape{p.K, p.M} : Shape{p.M, p.K}, p.in),
                    stream.empty(p.b == kYes ? Shape{p.N, p.K} : Shape{p.K, p.N}, p.in),
                    stream.empty({p.M, p.N}, p.out)});
    for (const Tensor* tensor : {&sets.back().a, &sets.back().b, &sets.back().c})
      fill_normal(stream, *tensor, sets.size());
  } while (static_cast<double>(sets.size()) * bytes_of(p) < beyond_cache);
  size_t turn = 0;
  const double seconds = median_seconds(stream, 0.1, [&] {
    const Operands& set = sets[turn++ % sets.size()];
    kernels::gemm(stream, set.c, p.write, set.a, p.a, set.b, p.b);
  });
  const double flops = 2.0 * static_cast<double>(p.M) * static_cast<double>(p.N) * static_cast<double>(p.K);
  std::printf("%-66s %9.1f us %8.1f TFLOP/s %6.2f TB/s\n", name.c_str(), seconds * 1e6, flops / seconds * 1e-12,
              bytes_of(p) / seconds * 1e-12);
  std::fflush(stdout);
}

void run(std::string_view wanted) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{16} << 30), pool);
  std::printf("%s\n", cuda::properties(0).name.c_str());
  for (const Problem& p : problems()) {
    const std::string name = cat(p.name, ' ', p.M, 'x', p.N, 'x', p.K, ' ', p.a == kYes ? 'T' : 'N',
                                 p.b == kYes ? 'T' : 'N', ' ', p.in, " -> ", p.out);
    if (name.find(wanted) != std::string::npos) line(stream, p, name);
  }
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
