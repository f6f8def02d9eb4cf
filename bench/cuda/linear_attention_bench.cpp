// A layer's linear attention on a GPU, at the shape of Qwen3.5-35B-A3B: 16 heads of queries and keys, 32 of values, 128
// channels each, bfloat16; and Kimi Linear's rule, whose 32 heads have keys of their own and decays of each channel.
// Times beside floors (floors.h), whose FLOPs are those of the kernels' costs.
//   cuda_linear_attention_bench [text that names must contain]
#include "floors.h"
#include "witan/kernels/linear_attention/gated_delta.h"
#include "witan/kernels/linear_attention/short_convolution.h"

namespace witan {
namespace {

using kernels::bytes_of;

constexpr kernels::DeltaHeads kHeads{.keys = 16, .values = 32, .key_dim = 128, .value_dim = 128},
    kKimiHeads{.keys = 32, .values = 32, .key_dim = 128, .value_dim = 128};

class Bench : public FloorBench {
 public:
  using FloorBench::FloorBench;

  // Rows of so many tokens, each one document.
  void shape(int64_t rows, int64_t tokens) {
    of_ = cat(rows, " x ", tokens);
    const int64_t T = rows * tokens;
    delta("gated delta rule", kHeads, 1, rows, tokens);
    delta("Kimi delta rule", kKimiHeads, kKimiHeads.key_dim, rows, tokens);
    kimi_gates(T);
    convolution(rows, tokens);
    norm(T);
  }

 private:
  // `decays`: of a head in a token.
  void delta(const std::string& name, const kernels::DeltaHeads& heads, int64_t decays, int64_t B, int64_t S) {
    const kernels::DeltaInputs in{normal({B, S, heads.channels()}),
                                  equal({B, S, heads.values * decays}, -0.2),
                                  equal({B, S, heads.values}, 0.5),
                                  {},
                                  heads};
    const Tensor o = stream_.empty({B, S, heads.value_channels()}, DType::bf16), d_o = normal(o.shape());
    const double inputs = bytes_of(in.qkv, in.g, in.beta), flops = static_cast<double>(B * S * heads.values);
    {
      const kernels::DeltaMemory memory = kernels::delta_memory(stream_, in, false);
      run(name + ", forward", inputs + bytes_of(o), flops * of_token(3, 4),
          [&] { kernels::gated_delta_forward(stream_, o, {}, in, memory); });
    }
    const kernels::DeltaGradients to{stream_.empty_like(in.qkv), stream_.empty_like(in.g), stream_.empty_like(in.beta),
                                     kernels::delta_memory(stream_, in, true)};
    run(name + ", backward", 2 * inputs + bytes_of(d_o), flops * of_token(8, 13),
        [&] { kernels::gated_delta_backward(stream_, to, d_o, in); });
  }
  void kimi_gates(int64_t T) {
    const int64_t H = kKimiHeads.values, C = H * kKimiHeads.key_dim;
    const Tensor a = normal({T, C}), b = normal({T, H}), A = equal({H}, 0), bias = equal({C}, -4),
                 g = stream_.empty(a.shape(), DType::f32), beta = stream_.empty(b.shape(), DType::f32);
    run("Kimi gates, forward", bytes_of(a, b, g, beta), 0,
        [&] { kernels::delta_gates_forward(stream_, g, beta, a, b, A, bias); });
    const kernels::DeltaGateGradients to{stream_.empty_like(a), stream_.empty_like(b), stream_.empty_like(A),
                                         stream_.empty_like(bias)};
    run("Kimi gates, backward", bytes_of(a, b, g, beta, to.da, to.db), 0,
        [&] { kernels::delta_gates_backward(stream_, to, g, beta, a, b, A, bias); });
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
};

}  // namespace
}  // namespace witan

int main(int count, char** words) {
  return witan::run_floor_bench(count, words, [](witan::Stream& stream, std::string_view wanted) {
    witan::Bench bench(stream, wanted);
    bench.shape(1, 4096);
    bench.shape(4, 4096);
    bench.shape(1, 32768);
  });
}
