// Memory-bound kernels at the sizes of the reference model with 16,384 tokens: time, bytes per second, and the fraction
// of the rate of copies. Bytes are those that must move once. Tensors rotate through more than the L2 cache.
//   cuda_memory_bench [text that names must contain]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/common/blocks.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/norm/norm.h"
#include "witan/kernels/pointwise/activation.h"
#include "witan/kernels/pointwise/dropout.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/kernels/vocabulary/vocabulary.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/timing.h"

namespace witan {
namespace {

namespace twin = kernels::cuda;

constexpr double kCopyRate = 4.3e12;  // bytes per second that copies reach on an H200
constexpr int64_t T = 16384, D = 512, F = 1792, V = 128256, E = 64;
constexpr auto kHalf = DType::bf16, kSingle = DType::f32;

class Bench {
 public:
  Bench(Stream& stream, std::string_view wanted) : stream_(stream), wanted_(wanted) {}

  // Normal values, repeated after a million.
  Tensor normal(const Shape& shape, DType dtype) {
    const Tensor out = stream_.empty(shape, dtype), flat = out.reshape({out.elements()});
    int64_t done = std::min<int64_t>(out.elements(), 1 << 20);
    const Philox rng(1, number_++);
    dispatch_floating(dtype, [&]<class X>() {
      std::vector<X> some(static_cast<size_t>(done));
      for (size_t i = 0; i < some.size(); ++i) some[i] = X(rng.normal(i));
      stream_.write(flat.narrow(0, 0, done), some.data());
    });
    for (int64_t more; done < out.elements(); done += more) {
      more = std::min(done, out.elements() - done);
      stream_.copy(flat.narrow(0, done, more), flat.narrow(0, 0, more));
    }
    return out;
  }
  template <class X>
  Tensor written(const std::vector<X>& values) {
    const Tensor out = stream_.empty({static_cast<int64_t>(values.size())}, dtype_of<X>());
    stream_.write(out, values.data());
    return out;
  }
  // T ids, either uniform or with probability proportional to 1 / (id + 1), like words.
  Tensor ids(bool as_words) {
    const Philox rng(1, number_++);
    std::vector<int32_t> values(static_cast<size_t>(T));
    for (size_t t = 0; t < values.size(); ++t) {
      const double u = rng.uniform(t), most = static_cast<double>(V);
      values[t] = static_cast<int32_t>(as_words ? std::pow(most, u) - 1 : u * most);
    }
    return written(values);
  }
  Tensor empty(const Shape& shape, DType dtype) { return stream_.empty(shape, dtype); }

  // make() allocates a set of tensors and returns the call on them, which moves `bytes`.
  void line(const std::string& name, double bytes, const std::function<std::function<void()>()>& make) {
    if (name.find(wanted_) == std::string::npos) return;
    const double beyond_cache = 4.0 * static_cast<double>(cuda::properties(stream_.device().index).l2);
    std::vector<std::function<void()>> calls;
    do calls.push_back(make());
    while (static_cast<double>(calls.size()) * bytes < beyond_cache);
    size_t turn = 0;
    const double seconds = median_seconds(stream_, 0.1, [&] { calls[turn++ % calls.size()](); });
    std::printf("%-44s %9.1f us %6.2f TB/s %5.1f %%\n", name.c_str(), seconds * 1e6, bytes / seconds * 1e-12,
                100 * bytes / seconds / kCopyRate);
    std::fflush(stdout);
  }
  Stream& stream() { return stream_; }

 private:
  Stream& stream_;
  std::string_view wanted_;
  uint64_t number_ = 0;
};

void norms(Bench& on, int64_t width) {
  Stream& s = on.stream();
  const Shape shape = {T, width};
  const std::string size = cat(" ", T, "x", width);
  const double rows = 2.0 * static_cast<double>(T * width), scales = 4.0 * static_cast<double>(T);
  on.line("rmsnorm forward" + size, 2 * rows + scales, [&] {
    return [&s, x = on.normal(shape, kHalf), y = on.empty(shape, kHalf), w = on.normal({width}, kHalf),
            r = on.empty({T}, kSingle)] { twin::rmsnorm_forward(s, y, r, x, w, 1e-5); };
  });
  on.line("add + rmsnorm forward" + size, 4 * rows + scales, [&] {
    return [&s, a = on.normal(shape, kHalf), b = on.normal(shape, kHalf), sum = on.empty(shape, kHalf),
            y = on.empty(shape, kHalf), w = on.normal({width}, kHalf),
            r = on.empty({T}, kSingle)] { twin::add_rmsnorm_forward(s, sum, y, r, a, b, w, 1e-5); };
  });
  on.line("rmsnorm backward input" + size, 3 * rows + scales, [&] {
    return [&s, x = on.normal(shape, kHalf), dy = on.normal(shape, kHalf), dx = on.empty(shape, kHalf),
            w = on.normal({width}, kHalf),
            r = on.normal({T}, kSingle)] { twin::rmsnorm_backward_input(s, dx, dy, x, w, r); };
  });
  on.line("add + rmsnorm backward input" + size, 4 * rows + scales, [&] {
    return [&s, x = on.normal(shape, kHalf), dy = on.normal(shape, kHalf), dsum = on.normal(shape, kHalf),
            w = on.normal({width}, kHalf),
            r = on.normal({T}, kSingle)] { twin::add_rmsnorm_backward_input(s, dsum, dsum, dy, x, w, r); };
  });
  on.line("rmsnorm backward weight" + size, 2 * rows + scales, [&] {
    return [&s, x = on.normal(shape, kHalf), dy = on.normal(shape, kHalf), dw = on.empty({width}, kSingle),
            r = on.normal({T}, kSingle)] { twin::rmsnorm_backward_weight(s, dw, Write::overwrite, dy, x, r); };
  });
  on.line("layernorm forward" + size, 2 * rows + 2 * scales, [&] {
    return [&s, x = on.normal(shape, kHalf), y = on.empty(shape, kHalf), w = on.normal({width}, kHalf),
            mean = on.empty({T}, kSingle),
            r = on.empty({T}, kSingle)] { twin::layernorm_forward(s, y, mean, r, x, w, {}, 1e-5); };
  });
  on.line("bias backward" + size, rows, [&] {
    return [&s, dy = on.normal(shape, kHalf), db = on.empty({width}, kSingle)] {
      twin::bias_backward(s, db, Write::overwrite, dy);
    };
  });
}

// Rows of experts, all of them full, or all rows without groups.
void activations(Bench& on, bool grouped) {
  Stream& s = on.stream();
  RowGroups groups;
  if (grouped) {
    std::vector<int64_t> begin(E), count(E, T / E);
    for (size_t e = 0; e < begin.size(); ++e) begin[e] = static_cast<int64_t>(e) * (T / E);
    groups = {on.written(begin), on.written(count)};
  }
  const double row = 2.0 * static_cast<double>(T * F), weights = 4.0 * static_cast<double>(T);
  const std::string size = cat(" ", T, "x", 2 * F, grouped ? " in 64 groups" : "");
  on.line("swiglu forward" + size, 3 * row + weights, [&] {
    return [&s, groups, h = on.normal({T, 2 * F}, kHalf), y = on.empty({T, F}, kHalf), w = on.normal({T}, kSingle)] {
      twin::swiglu_forward(s, y, h, w, groups);
    };
  });
  on.line("swiglu backward" + size, 5 * row + 2 * weights, [&] {
    return [&s, groups, h = on.normal({T, 2 * F}, kHalf), dh = on.empty({T, 2 * F}, kHalf),
            dy = on.normal({T, F}, kHalf), w = on.normal({T}, kSingle),
            dw = on.empty({T}, kSingle)] { twin::swiglu_backward(s, dh, dw, dy, h, w, groups); };
  });
  if (grouped) return;
  on.line("gelu, exact, forward" + cat(" ", T, "x", F), 2 * row, [&] {
    return [&s, h = on.normal({T, F}, kHalf), y = on.empty({T, F}, kHalf)] {
      twin::gelu_forward(s, y, h, {}, {}, GeluKind::exact);
    };
  });
}

void embeddings(Bench& on, bool as_words) {
  Stream& s = on.stream();
  const double rows = 2.0 * static_cast<double>(T * D), table = static_cast<double>(V * D), number = 4.0 * T;
  const std::string size = cat(" ", T, "x", D, as_words ? ", words" : ", uniform");
  on.line("embedding forward" + size, 2 * rows + number, [&] {
    return [&s, w = on.normal({V, D}, kHalf), ids = on.ids(as_words), y = on.empty({T, D}, kHalf)] {
      twin::embedding_forward(s, y, ids, w, 0);
    };
  });
  for (const DType gradient : {kHalf, kSingle})
    for (const Write write : {Write::overwrite, Write::accumulate}) {
      const bool adds = write == Write::accumulate;
      const double moved = rows + number + (adds ? 0.0 : table * static_cast<double>(size_of(gradient)));
      on.line(cat("embedding backward", size, " ", gradient, adds ? ", added" : ""), moved, [&] {
        return [&s, write, dw = s.zeros({V, D}, gradient), order = on.empty({V + 1 + T}, DType::i32),
                dy = on.normal({T, D}, kHalf),
                ids = on.ids(as_words)] { twin::embedding_backward(s, dw, write, order, dy, ids, 0); };
      });
    }
}

void elements(Bench& on) {
  Stream& s = on.stream();
  const Shape shape = {T, D}, large = {T, 2 * F};
  const double n = static_cast<double>(T * D), many = static_cast<double>(T * 2 * F);
  on.line("add bf16 16384x512", 6 * n, [&] {
    return [&s, a = on.normal(shape, kHalf), b = on.normal(shape, kHalf), y = on.empty(shape, kHalf)] {
      twin::add(s, y, a, b);
    };
  });
  on.line("add bf16 16384x3584", 6 * many, [&] {
    return [&s, a = on.normal(large, kHalf), b = on.normal(large, kHalf), y = on.empty(large, kHalf)] {
      twin::add(s, y, a, b);
    };
  });
  on.line("accumulate bf16 onto f32 16384x3584", 10 * many, [&] {
    return [&s, to = s.zeros(large, kSingle), from = on.normal(large, kHalf)] {
      twin::accumulate(s, to, Write::accumulate, from);
    };
  });
  on.line("cast f32 to bf16 16384x3584", 6 * many,
          [&] { return [&s, x = on.normal(large, kSingle), y = on.empty(large, kHalf)] { twin::cast(s, y, x); }; });
  on.line("scale f32 in place 16384x3584", 8 * many,
          [&] { return [&s, x = on.normal(large, kSingle)] { twin::scale(s, x, Write::overwrite, x, 1); }; });
  on.line("fill f32 16384x3584", 4 * many, [&] { return [&s, y = on.empty(large, kSingle)] { twin::fill(s, y, 0); }; });
  on.line("sum f32 16384x3584", 4 * many, [&] {
    const int64_t blocks = (T * 2 * F + kernels::kSumBlock - 1) / kernels::kSumBlock;
    return [&s, x = on.normal(large, kSingle), y = on.empty({1}, kSingle), partials = on.empty({blocks}, DType::f64)] {
      twin::sum(s, y, partials, x);
    };
  });
  kernels::Dropout how{.p = 0.1, .seed = 42, .step = on.written(std::vector<double>(kernels::kStepValues, 1))};
  on.line("dropout bf16 16384x3584", 4 * many, [&] {
    return [&s, how, x = on.normal(large, kHalf), y = on.empty(large, kHalf)] { twin::dropout(s, y, x, how); };
  });
  on.line("swap blocks bf16 16384x4x896", 4 * many, [&] {
    return
        [&s, x = on.normal({T, 4, F / 2}, kHalf), y = on.empty({4, T, F / 2}, kHalf)] { twin::swap_blocks(s, y, x); };
  });
  on.line("repeat row bf16 16384x3584", 2 * many, [&] {
    return [&s, row = on.normal({2 * F}, kHalf), y = on.empty(large, kHalf)] { twin::repeat_row(s, y, row); };
  });
}

void run(std::string_view wanted) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{16} << 30), pool);
  std::printf("%s\n", cuda::properties(0).name.c_str());
  Bench bench(stream, wanted);
  for (const int64_t width : {D, int64_t{2048}, int64_t{4096}}) norms(bench, width);
  for (const bool grouped : {false, true}) activations(bench, grouped);
  for (const bool as_words : {false, true}) embeddings(bench, as_words);
  elements(bench);
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
