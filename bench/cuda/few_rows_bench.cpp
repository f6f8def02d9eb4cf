// Products with few rows on a GPU, as in generation: those of a layer of Qwen3-30B-A3B and of its head, with the
// kernels for few rows, with those that have the bits of training (RowProducts), and with those for many rows, compared
// with the time to read the needed weights from memory. Calls
// are recorded in a CUDA graph, and weights rotate through more than the L2 cache, as in a step; tokens are assigned to
// experts by a uniform router.
//   cuda_few_rows_bench [text that lines must contain]
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/moe/router.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/queue.h"
#include "witan/tensor/timing.h"

namespace witan {
namespace {

using kernels::Transpose;

constexpr double kPeakBytes = 4.8e12;  // H200 memory bandwidth according to its data sheet

// A product with the n-th set of weights, and the bytes of the weights it reads.
struct Line {
  std::string name;
  double bytes;
  size_t sets;
  std::function<void(size_t)> multiply;
};

class Bench {
 public:
  Bench(Stream& stream, std::string_view wanted) : stream_(stream), wanted_(wanted) {}

  void dense(const std::string& name, int64_t rows, int64_t out, int64_t in) {
    const Tensor x = normal({rows, in}, DType::bf16), y = stream_.empty({rows, out}, DType::bf16);
    const auto weights = sets({out, in}, DType::bf16);
    run({cat(name, ", ", rows, " x ", out, " x ", in), static_cast<double>(weights[0].bytes()), weights.size(),
         [&](size_t set) {
           kernels::gemm(stream_, y, Write::overwrite, x, Transpose::no, weights[set], Transpose::yes);
         }});
  }
  void router(int64_t rows, int64_t experts, int64_t width) {
    const Tensor x = normal({rows, width}, DType::bf16), y = stream_.empty({rows, experts}, DType::f32);
    const auto weights = sets({experts, width}, DType::f32);
    run({cat("router, ", rows, " x ", experts, " x ", width), static_cast<double>(weights[0].bytes()), weights.size(),
         [&](size_t set) { kernels::wide_linear(stream_, y, x, weights[set]); }});
  }
  // w [E, N, K] for so many tokens with K choices each; SwiGLU follows the first product.
  void experts(int64_t tokens, int64_t chosen, const Shape& w, bool swiglu) {
    const int64_t E = w[0], N = w[1], rows = tokens * chosen;
    const auto [groups, visited] = visits(tokens, chosen, E);
    const Tensor x = normal({rows, w[2]}, DType::bf16), h = stream_.empty({rows, N}, DType::bf16);
    const Tensor y = stream_.empty({rows, N / 2}, DType::bf16), s = normal({rows}, DType::f32);
    const double share = static_cast<double>(visited) / static_cast<double>(E);
    const auto weights = sets(w, DType::bf16, share);
    const double bytes = share * static_cast<double>(weights[0].bytes());
    run({cat(swiglu ? "experts' gate and up, " : "experts' down, ", tokens, " tokens, ", visited, " of ", E,
             " experts"),
         bytes, weights.size(), [&, &of = groups](size_t set) {
           if (swiglu)
             kernels::grouped_swiglu_forward(stream_, y, h, x, of, weights[set], s);
           else
             kernels::grouped_gemm_forward(stream_, h, x, of, weights[set]);
         }});
  }

 private:
  struct Visits {
    RowGroups groups;
    int64_t experts = 0;  // experts with rows
  };

  Tensor normal(const Shape& shape, DType dtype) {
    Tensor out = stream_.empty(shape, dtype);
    fill_normal(stream_, out, ++seed_);
    return out;
  }
  // `visited`: the fraction of each weight that is read.
  std::vector<Tensor> sets(const Shape& shape, DType dtype, double visited = 1) {
    const double beyond_cache = 2.0 * static_cast<double>(cuda::properties(stream_.device().index).l2);
    std::vector<Tensor> all;
    do {
      all.push_back(normal(shape, dtype));
    } while (visited * static_cast<double>(std::ssize(all) * all[0].bytes()) < beyond_cache);
    return all;
  }
  Visits visits(int64_t tokens, int64_t chosen, int64_t experts) {
    std::vector<int64_t> begin(static_cast<size_t>(experts)), count(begin);
    const Philox rng(1, 2);
    uint64_t draw = 0;
    for (int64_t token = 0; token < tokens; ++token) {
      std::vector<size_t> own;
      while (std::ssize(own) < chosen) {
        const auto expert = static_cast<size_t>(rng.uniform(draw++) * static_cast<double>(experts));
        if (std::ranges::count(own, expert) == 0) own.push_back(expert);
      }
      for (const size_t expert : own) ++count[expert];
    }
    for (size_t e = 1; e < begin.size(); ++e) begin[e] = begin[e - 1] + count[e - 1];
    Visits visits{{stream_.empty({experts}, DType::i64), stream_.empty({experts}, DType::i64)}};
    stream_.write(visits.groups.begin, begin.data());
    stream_.write(visits.groups.count, count.data());
    visits.groups.expected_rows = tokens * chosen;
    visits.experts = experts - std::ranges::count(count, 0);
    return visits;
  }
  void run(const Line& line) {
    if (line.name.find(wanted_) == std::string::npos) return;
    const double floor = line.bytes / kPeakBytes;
    std::printf("%-58s floor %7.2f us", line.name.c_str(), floor * 1e6);
    for (const auto& [name, few, by_row] :
         {std::tuple{"few rows", true, false}, {"as in training", true, true}, {"many rows", false, false}}) {
      const kernels::FewRows scope(few);
      const kernels::RowProducts as_training(by_row);
      const size_t calls = std::max<size_t>(line.sets, 8);
      const auto all = [&] {
        for (size_t call = 0; call < calls; ++call) line.multiply(call % line.sets);
      };
      all();  // warm-up: libraries choose algorithms
      const auto graph = record(*stream_.queue(), all);
      const double seconds = median_seconds(stream_, 0.1, [&] { graph->launch(); }) / static_cast<double>(calls);
      std::printf("   %s %8.2f us, %3.0f %%", name, seconds * 1e6, 100 * floor / seconds);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  Stream& stream_;
  std::string_view wanted_;
  uint64_t seed_ = 0;
};

void run(std::string_view wanted) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{16} << 30), pool);
  std::printf("%s\n", cuda::properties(0).name.c_str());
  Bench bench(stream, wanted);
  constexpr int64_t kWidth = 2048, kHeads = 4096, kGroups = 512, kHidden = 768, kExperts = 128, kChosen = 8;
  for (const int64_t texts : {1, 2, 4, 8, 16}) {
    bench.dense("queries, keys, values", texts, kHeads + 2 * kGroups, kWidth);
    bench.dense("attention's output", texts, kWidth, kHeads);
    bench.dense("head", texts, 151936, kWidth);
  }
  for (const int64_t texts : {1, 8, 16, 32, 64}) {
    bench.router(texts, kExperts, kWidth);
    bench.experts(texts, kChosen, {kExperts, 2 * kHidden, kWidth}, true);
    bench.experts(texts, kChosen, {kExperts, kWidth, kHidden}, false);
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
