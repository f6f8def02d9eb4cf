// A layer's state space on a GPU, at the shape of Nemotron-3-Nano: 64 heads of 64 channels, 8 groups of 128 numbers a
// channel, bfloat16; times beside floors (floors.h), whose FLOPs are those of the kernels' costs.
//   cuda_state_space_bench [text that names must contain]
#include "floors.h"
#include "witan/kernels/state_space/ssd.h"

namespace witan {
namespace {

using kernels::bytes_of;

constexpr kernels::SsdHeads kHeads{.heads = 64, .groups = 8, .head_dim = 64, .state_dim = 128};

class Bench : public FloorBench {
 public:
  using FloorBench::FloorBench;

  // Rows of so many tokens, each one document.
  void shape(int64_t B, int64_t S) {
    of_ = cat(B, " x ", S);

    const Shape of_gates{B, S, kHeads.heads};
    const kernels::SsdInputs in{normal({B, S, kHeads.channels()}),
                                equal(of_gates, 0.1F),
                                equal(of_gates, -0.1F),
                                equal({kHeads.heads}, 1),
                                {},
                                kHeads};
    const Tensor y = stream_.empty({B, S, kHeads.inner()}, DType::bf16), dy = normal(y.shape());
    const double inputs = bytes_of(in.xbc, in.dt, in.a), token_heads = static_cast<double>(B * S * kHeads.heads);
    {
      const kernels::SsdMemory memory = kernels::ssd_memory(stream_, in.xbc, kHeads, false);
      run("state space, forward", inputs + bytes_of(y), token_heads * flops(2, 1, 1),
          [&] { kernels::ssd_forward(stream_, y, {}, in, memory); });
    }
    kernels::SsdGradients to{stream_.empty_like(in.xbc), stream_.empty_like(in.dt), stream_.empty_like(in.a),
                             stream_.empty({kHeads.heads}, DType::f32)};
    to.memory = kernels::ssd_memory(stream_, in.xbc, kHeads, true);
    run("state space, backward", 2 * inputs + bytes_of(dy), token_heads * flops(5, 3, 2),
        [&] { kernels::ssd_backward(stream_, to, dy, in); });
    norm(B * S);
  }

 private:
  void norm(int64_t T) {
    const Tensor x = normal({T, kHeads.inner()}), z = normal(x.shape()), w = equal({kHeads.inner()}, 1),
                 y = stream_.empty_like(x), r = stream_.empty({T, kHeads.groups}, DType::f32);
    run("norm in groups, forward", bytes_of(x, z, y, r), 0,
        [&] { kernels::gated_group_rmsnorm_forward(stream_, y, r, x, z, w, 1e-5); });
    const kernels::GatedGroupNormGradients to{stream_.empty_like(x), stream_.empty_like(x),
                                              stream_.empty(w.shape(), DType::f32)};
    run("norm in groups, backward", bytes_of(x, z, y, r) + bytes_of(to.dx, to.dz), 0,
        [&] { kernels::gated_group_rmsnorm_backward(stream_, to, y, x, z, w, r); });
  }
  // FLOPs of a token and head: products with the state, and rows of a chunk's triangles with vectors and with inputs.
  static double flops(double states, double of_vectors, double of_inputs) {
    const auto P = static_cast<double>(kHeads.head_dim), N = static_cast<double>(kHeads.state_dim);
    return 2 * states * N * P + static_cast<double>(kernels::kSsdChunk) * (of_vectors * N + of_inputs * P);
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
