#include "witan/planner/gpu_ceilings.h"

#include <algorithm>
#include <vector>

#include "witan/base/threads.h"
#include "witan/kernels/gemm.h"
#include "witan/nn/parameter.h"

namespace witan {
namespace {

// The median time of a few calls, each waited for.
template <class Call>
double seconds_of(Stream& stream, const Call& call) {
  constexpr int kCalls = 12, kWarm = 2;
  std::vector<double> took;
  for (int i = 0; i < kCalls; ++i) {
    stream.wait();
    const double start = stream.now();
    call();
    stream.wait();
    if (i >= kWarm) took.push_back(stream.now() - start);
  }
  std::nth_element(took.begin(), took.begin() + static_cast<ptrdiff_t>(took.size() / 2), took.end());
  return took[took.size() / 2];
}

Tensor random_matrix(Stream& stream, const char* name, int64_t size, DType dtype) {
  return Parameter(stream, {.name = name, .shape = {size, size}, .dtype = dtype}, 0, size, 1).value();
}

double product_flops(Stream& stream, DType dtype) {
  const int64_t size = dtype == DType::f64 ? 2048 : 8192;
  const Tensor a = random_matrix(stream, "a", size, dtype), b = random_matrix(stream, "b", size, dtype),
               c = stream.empty_like(a);
  const double seconds = seconds_of(stream, [&] {
    kernels::gemm(stream, c, Write::overwrite, a, kernels::Transpose::no, b, kernels::Transpose::yes);
  });
  return 2 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) / seconds;
}

double copied_bytes(Stream& stream) {
  constexpr int64_t kElements = int64_t{1} << 29;
  const Tensor from = stream.empty({kElements}, DType::i32), to = stream.empty_like(from);
  return 2 * static_cast<double>(from.bytes()) / seconds_of(stream, [&] { stream.copy(to, from); });
}

}  // namespace

Ceilings measure_gpu_ceilings(const Load& load) {
  Ceilings ceilings;
  ceilings.load = load;
  ThreadPool pool(usable_cores());
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{5} << 30), pool);
  ceilings.fma_flops = load.ranks * product_flops(stream, dtype_from_name(load.dtype));
  ceilings.copy_bytes = copied_bytes(stream);
  return ceilings;
}

}  // namespace witan
