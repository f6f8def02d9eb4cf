// A layer's linear attention on a GPU, at the shape of Qwen3.5-35B-A3B: 16 heads of queries and keys, 32 of values, 128
// channels each, bfloat16. Beside each time stands the floor: each operand read or written once at the bandwidth of a
// large copy, or the FLOPs that the kernel's cost counts at the rate of large products, whichever takes longer.
//   cuda_linear_attention_bench [text that names must contain]
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/linear_attention/gated_delta.h"
#include "witan/kernels/linear_attention/short_convolution.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/timing.h"

namespace witan {
namespace {

using kernels::bytes_of;

constexpr kernels::DeltaHeads kHeads{.keys = 16, .values = 32, .key_dim = 128, .value_dim = 128};
constexpr double kBandwidth = 4.3e12, kFlops = 790e12;  // of a large copy and of large products on an H200

class Bench {
 public:
  Bench(Stream& stream, std::string_view wanted) : stream_(stream), wanted_(wanted) {}

  // Rows of so many tokens, each one document.
  void shape(int64_t rows, int64_t tokens) {
    of_ = cat(rows, " x ", tokens);
    const int64_t T = rows * tokens;
    delta(rows, tokens);
    convolution(rows, tokens);
    norm(T);
  }

 private:
  void delta(int64_t B, int64_t S) {
    const kernels::DeltaInputs in{normal({B, S, kHeads.channels()}),
                                  gate({B, S, kHeads.values}, -0.2),
                                  gate({B, S, kHeads.values}, 0.5),
                                  {},
                                  kHeads};
    const Tensor o = stream_.empty({B, S, kHeads.value_channels()}, DType::bf16), d_o = normal(o.shape());
    const double inputs = bytes_of(in.qkv, in.g, in.beta), flops = static_cast<double>(B * S * kHeads.values);
    {
      const kernels::DeltaMemory memory = kernels::delta_memory(stream_, in.qkv, kHeads, false);
      run("gated delta rule, forward", inputs + bytes_of(o), flops * of_token(3, 4),
          [&] { kernels::gated_delta_forward(stream_, o, {}, in, memory); });
    }
    const kernels::DeltaGradients to{stream_.empty_like(in.qkv), stream_.empty_like(in.g), stream_.empty_like(in.beta),
                                     kernels::delta_memory(stream_, in.qkv, kHeads, true)};
    run("gated delta rule, backward", 2 * inputs + bytes_of(d_o), flops * of_token(8, 13),
        [&] { kernels::gated_delta_backward(stream_, to, d_o, in); });
  }
  void convolution(int64_t B, int64_t S) {
    const Tensor x = normal({B, S, kHeads.channels()}), w = normal({kHeads.channels(), 4}), y = stream_.empty_like(x),
                 dx = stream_.empty_like(x), dw = stream_.empty(w.shape(), DType::f32);
    run("short convolution, forward", bytes_of(x, y), 0,
        [&] { kernels::short_convolution_forward(stream_, y, x, {w}, {}); });
    run("short convolution, backward", bytes_of(x, y, dx), 0, [&] {
      kernels::short_convolution_backward(stream_, {dx, dw}, y, x, {w}, {});
    });
  }
  void norm(int64_t T) {
    const Tensor x = normal({T * kHeads.values, kHeads.value_dim}), z = normal(x.shape()),
                 w = normal({kHeads.value_dim}), y = stream_.empty_like(x), r = stream_.empty({x.size(0)}, DType::f32);
    run("gated norm, forward", bytes_of(x, z, y, r), 0,
        [&] { kernels::gated_rmsnorm_forward(stream_, y, r, x, z, w, 1e-6); });
    const kernels::GatedNormGradients to{stream_.empty_like(x), stream_.empty_like(x),
                                         stream_.empty(w.shape(), DType::f32)};
    run("gated norm, backward", bytes_of(x, z, y, r) + bytes_of(to.dx, to.dz), 0,
        [&] { kernels::gated_rmsnorm_backward(stream_, to, y, x, z, w, r); });
  }

  // FLOPs of a token and head: products with the state, and rows of a chunk's triangles.
  static double of_token(double states, double triangles) {
    const auto d = static_cast<double>(kHeads.key_dim);
    return 2 * states * d * d + triangles * static_cast<double>(kernels::kDeltaChunk) * d;
  }
  Tensor normal(const Shape& shape) {
    const Tensor out = stream_.empty(shape, DType::bf16);
    fill_normal(stream_, out, ++seed_);
    return out;
  }
  Tensor gate(const Shape& shape, float value) {
    const Tensor out = stream_.empty(shape, DType::f32);
    const std::vector<float> all(static_cast<size_t>(out.elements()), value);
    stream_.write(out, all.data());
    return out;
  }
  void run(std::string_view name, double bytes, double flops, const std::function<void()>& call) {
    const std::string line = cat(name, ", ", of_);
    if (line.find(wanted_) == std::string::npos) return;
    const double floor = std::max(bytes / kBandwidth, flops / kFlops), seconds = median_seconds(stream_, 0.3, call);
    std::printf("%-44s %9.1f us   floor %8.1f us, %3.0f %%\n", line.c_str(), seconds * 1e6, floor * 1e6,
                100 * floor / seconds);
    std::fflush(stdout);
  }

  Stream& stream_;
  std::string_view wanted_;
  std::string of_;
  uint64_t seed_ = 0;
};

void run(std::string_view wanted) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{24} << 30), pool);
  std::printf("%s\n", cuda::properties(0).name.c_str());
  Bench bench(stream, wanted);
  bench.shape(1, 4096);
  bench.shape(4, 4096);
  bench.shape(1, 32768);
}

}  // namespace
}  // namespace witan

int main(int count, char** words) {
  if (witan::cuda::devices() == 0)
    std::printf("%s\n", witan::cuda::why_none().c_str());
  else
    witan::run(count > 1 ? words[1] : "");
}
