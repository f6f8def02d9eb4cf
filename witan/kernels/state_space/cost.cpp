#include "witan/kernels/state_space/ssd.h"

namespace witan::kernels {
namespace {

double numbers_of(const Tensor& x) {
  return static_cast<double>(x.elements());
}

double bytes_of_ssd(const SsdInputs& in) {
  return bytes_of(in.xbc, in.dt, in.a, in.D, in.sequence_ids);
}

// FLOPs of a token and head: `states` products with the state, and triangles of a chunk with B or C and with x, which
// are counted as if every chunk were full.
double ssd_flops(const SsdHeads& heads, double states, double of_groups, double of_inputs) {
  const auto P = static_cast<double>(heads.head_dim), N = static_cast<double>(heads.state_dim);
  return 2 * states * N * P + static_cast<double>(kSsdChunk) * (of_groups * N + of_inputs * P);
}

}  // namespace

void ssd_gates_forward(Stream& stream, const Tensor& dt, const Tensor& a, const Tensor& raw, const Tensor& A,
                       const Tensor& bias, double least) {
  const Cost cost{6 * numbers_of(dt), bytes_of(dt, a, raw, A, bias)};
  WITAN_LAUNCH(stream, ssd_gates_forward, cost, dt, a, raw, A, bias, least);
}

void ssd_gates_backward(Stream& stream, const SsdGateGradients& to, const Tensor& ddt, const Tensor& da,
                        const Tensor& raw, const Tensor& A, const Tensor& bias, double least) {
  const Cost cost{14 * numbers_of(ddt), bytes_of(to.draw, to.dA, to.dbias, ddt, da, raw, A, bias)};
  WITAN_LAUNCH(stream, ssd_gates_backward, cost, to, ddt, da, raw, A, bias, least);
}

SsdMemory ssd_memory(Stream& stream, const Tensor& xbc, const SsdHeads& heads, bool backward) {
  if (!stream.plans_for_cuda()) return {};
  const int64_t B = xbc.size(0), S = xbc.size(1), H = heads.heads, N = heads.state_dim;
  const auto empty = [&](const Shape& shape, DType dtype) { return stream.empty(shape, dtype, MemoryTag::workspace); };
  const bool tiles = xbc.dtype() == DType::bf16 && N <= 128 && N % 8 == 0 && heads.head_dim % 8 == 0;
  const DType dtype = tiles ? DType::bf16 : accumulator(xbc.dtype());
  const Shape of_states{B, (S + kSsdChunk - 1) / kSsdChunk, H, N, heads.head_dim};
  SsdMemory memory;
  if (tiles) {
    memory.chunks = empty({B, S + 2}, DType::i32);
    memory.scales = empty({B, H, S, 4}, DType::f32);
  }
  if (tiles || backward) memory.states = empty(of_states, dtype);
  if (!backward) return memory;
  if (tiles) {
    memory.state_gradients = empty(of_states, dtype);
    memory.skips = empty({B, S, H}, DType::f32);
  } else {
    memory.shares = empty({B, S, H, 2 * N}, dtype);
  }
  return memory;
}

// With the state: C S and the sum of B xᵀ. Triangles: C B, and M X.
void ssd_forward(Stream& stream, const Tensor& y, const Tensor& last, const SsdInputs& in, const SsdMemory& memory) {
  const Cost cost{numbers_of(in.dt) * ssd_flops(in.heads, 2, 1, 1), bytes_of(y, last) + bytes_of_ssd(in)};
  WITAN_LAUNCH(stream, ssd_forward, cost, y, last, in, memory);
}

// The states again (1 product), then: of dS, dx, dB and dC 4 products with states; of C B, dB and dC 3 triangles; of dM
// and dx 2.
void ssd_backward(Stream& stream, const SsdGradients& to, const Tensor& dy, const SsdInputs& in) {
  const Cost cost{numbers_of(in.dt) * ssd_flops(in.heads, 5, 3, 2),
                  bytes_of(to.dxbc, to.ddt, to.da, to.dD, dy) + bytes_of_ssd(in)};
  WITAN_LAUNCH(stream, ssd_backward, cost, to, dy, in);
}

// A run reads and writes its row's state once, and reads its chunk; a token has half a chunk of others on average.
void ssd_decode(Stream& stream, const Tensor& y, const Tensor& states, const SsdInputs& in, const CacheTokens& tokens,
                const SsdChunk& chunk) {
  const double rows = static_cast<double>(states.size(0)), triangles = chunk.xbc.defined() ? 1 : 0;
  const double row = (2 * bytes_of(states) + bytes_of(chunk.xbc, chunk.dt, chunk.a)) / rows;
  const Cost cost{numbers_of(in.dt) * ssd_flops(in.heads, 2.5, triangles, triangles),
                  bytes_of(y) + bytes_of_ssd(in) + row * static_cast<double>(tokens.runs.size())};
  WITAN_LAUNCH(stream, ssd_decode, cost, y, states, in, tokens, chunk);
}

void gated_group_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& z,
                                 const Tensor& w, double eps) {
  const Cost cost{9 * numbers_of(x), bytes_of(y, r, x, z, w)};
  WITAN_LAUNCH(stream, gated_group_rmsnorm_forward, cost, y, r, x, z, w, eps);
}

void gated_group_rmsnorm_backward(Stream& stream, const GatedGroupNormGradients& to, const Tensor& dy, const Tensor& x,
                                  const Tensor& z, const Tensor& w, const Tensor& r) {
  const Cost cost{22 * numbers_of(x), bytes_of(to.dx, to.dz, to.dw, dy, x, z, w, r)};
  WITAN_LAUNCH(stream, gated_group_rmsnorm_backward, cost, to, dy, x, z, w, r);
}

}  // namespace witan::kernels
