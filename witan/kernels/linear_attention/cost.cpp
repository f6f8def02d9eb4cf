#include "witan/kernels/linear_attention/gated_delta.h"
#include "witan/kernels/linear_attention/short_convolution.h"

namespace witan::kernels {
namespace {

double elements_of(const Tensor& x) {
  return static_cast<double>(x.elements());
}

double bytes_of_inputs(const DeltaInputs& in) {
  return bytes_of(in.qkv, in.g, in.beta, in.sequence_ids);
}

// FLOPs of a token and head: `states` products with the state, and triangles of a chunk with keys and with values,
// which are counted as if every chunk were full.
double chunk_flops(const DeltaHeads& heads, double states, double of_keys, double of_values) {
  const auto dk = static_cast<double>(heads.key_dim), dv = static_cast<double>(heads.value_dim);
  return 2 * states * dk * dv + static_cast<double>(kDeltaChunk) * (of_keys * dk + of_values * dv);
}

// The rule with decays of channels is counted under a name of its own: GPUs need more time for the same FLOPs.
const char* name_of_rule(const DeltaInputs& in, const char* of_heads, const char* of_channels) {
  return in.decay() == Decay::of_head ? of_heads : of_channels;
}

}  // namespace

void short_convolution_forward(Stream& stream, const Tensor& y, const Tensor& x, const ConvolutionFilters& filters,
                               const Tensor& sequence_ids) {
  const Cost cost{elements_of(x) * (2 * static_cast<double>(filters.w.size(1)) + (filters.silu ? 4 : 0)),
                  bytes_of(y, x, filters.w, filters.bias, sequence_ids)};
  WITAN_LAUNCH(stream, short_convolution_forward, cost, y, x, filters, sequence_ids);
}

void short_convolution_backward(Stream& stream, const ConvolutionGradients& to, const Tensor& dy, const Tensor& x,
                                const ConvolutionFilters& filters, const Tensor& sequence_ids) {
  const double per_tap = filters.silu ? 6 : 4;
  const Cost cost{elements_of(x) * (per_tap * static_cast<double>(filters.w.size(1)) + (filters.silu ? 6 : 0)),
                  bytes_of(to.dx, to.dw, to.dbias, dy, x, filters.w, filters.bias, sequence_ids)};
  WITAN_LAUNCH(stream, short_convolution_backward, cost, to, dy, x, filters, sequence_ids);
}

// A token reads and writes its row's tail.
void short_convolution_decode(Stream& stream, const Tensor& y, const Tensor& tails, const Tensor& x,
                              const ConvolutionFilters& filters, const CacheTokens& tokens) {
  const double tail = bytes_of(x) * static_cast<double>(tails.size(1) + 1);
  const Cost cost{elements_of(x) * (2 * static_cast<double>(filters.w.size(1)) + (filters.silu ? 4 : 0)),
                  bytes_of(y, x, filters.w, filters.bias) + tail};
  WITAN_LAUNCH(stream, short_convolution_decode, cost, y, tails, x, filters, tokens);
}

void multiply_columns(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  WITAN_LAUNCH(stream, multiply_columns, (Cost{elements_of(y), bytes_of(y, a, b)}), y, a, b);
}

void delta_gates_forward(Stream& stream, const Tensor& g, const Tensor& beta, const Tensor& a, const Tensor& b,
                         const Tensor& A, const Tensor& bias) {
  const Cost cost{8 * elements_of(g), bytes_of(g, beta, a, b, A, bias)};
  WITAN_LAUNCH(stream, delta_gates_forward, cost, g, beta, a, b, A, bias);
}

void delta_gates_backward(Stream& stream, const DeltaGateGradients& to, const Tensor& dg, const Tensor& dbeta,
                          const Tensor& a, const Tensor& b, const Tensor& A, const Tensor& bias) {
  const Cost cost{16 * elements_of(dg), bytes_of(to.da, to.db, to.dA, to.dbias, dg, dbeta, a, b, A, bias)};
  WITAN_LAUNCH(stream, delta_gates_backward, cost, to, dg, dbeta, a, b, A, bias);
}

DeltaMemory delta_memory(Stream& stream, const DeltaInputs& in, bool backward) {
  if (!stream.plans_for_cuda()) return {};
  const DeltaHeads& heads = in.heads;
  const int64_t B = in.qkv.size(0), S = in.qkv.size(1), H = heads.values, dk = heads.key_dim, dv = heads.value_dim;
  const int64_t slots = (S + kDeltaChunk - 1) / kDeltaChunk;
  const bool channels = in.decay() == Decay::of_channels;
  const auto empty = [&](const Shape& shape, DType dtype) { return stream.empty(shape, dtype, MemoryTag::workspace); };
  const bool tiles = in.qkv.dtype() == DType::bf16 && dk <= 128 && dk % 8 == 0 && dv % 8 == 0 &&
                     (!channels || heads.keys == heads.values);
  const DType dtype = tiles ? DType::bf16 : accumulator(in.qkv.dtype());
  DeltaMemory memory;
  if (tiles) {
    memory.chunks = empty({B, S + 2}, DType::i32);
    memory.scales = empty({B, S, H, 4}, DType::f32);
    memory.decays = empty(channels ? Shape{B, slots, H, dk} : Shape{B, S, H}, DType::f32);
    if (channels) memory.rows = empty({B, S, H, 3, dk}, dtype);
    memory.inverse = empty({B, S, H, kDeltaChunk}, dtype);
    memory.links = empty({B, S, H, kDeltaChunk}, dtype);
  }
  if (!backward) return memory;
  memory.states = empty(tiles ? Shape{B, slots, H, dv, dk} : Shape{B, slots, H, dk, dv}, dtype);
  if (tiles) {
    memory.state_gradients = empty(memory.states.shape(), dtype);
    memory.u = empty({B, S, H, dv}, dtype);
    memory.du = empty(memory.u.shape(), dtype);
  } else {
    memory.shares = empty({B, S, H, 2 * dk}, dtype);
  }
  return memory;
}

// With the state: K S, Q S and the sum of k uᵀ. Triangles: k k and q k of keys, the solution of U and P U of values.
void gated_delta_forward(Stream& stream, const Tensor& o, const Tensor& last, const DeltaInputs& in,
                         const DeltaMemory& memory) {
  const Cost cost{elements_of(in.beta) * chunk_flops(in.heads, 3, 2, 2), bytes_of(o, last) + bytes_of_inputs(in)};
  WITAN_LAUNCH_NAMED(stream, gated_delta_forward, name_of_rule(in, "gated_delta_forward", "channel_delta_forward"),
                     cost, CallShape{}, o, last, in, memory);
}

// The states again (2 products, 1 triangle of each), then: of dU, dS, dq and dk 6 products with states; of dU, U, dA
// and dP 5 triangles with values; of q k and the gradients of q and k 6 with keys.
void gated_delta_backward(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in) {
  const Cost cost{elements_of(in.beta) * chunk_flops(in.heads, 8, 7, 6),
                  bytes_of(to.dqkv, to.dg, to.dbeta, d_o) + bytes_of_inputs(in)};
  WITAN_LAUNCH_NAMED(stream, gated_delta_backward, name_of_rule(in, "gated_delta_backward", "channel_delta_backward"),
                     cost, CallShape{}, to, d_o, in);
}

// A run reads and writes its row's state once, and reads its chunk; a token has half a chunk of others on average.
void gated_delta_decode(Stream& stream, const Tensor& o, const Tensor& states, const DeltaInputs& in,
                        const CacheTokens& tokens, const DeltaChunk& chunk) {
  const double rows = static_cast<double>(states.size(0)), triangles = chunk.qkv.defined() ? 2 : 0;
  const double row = (2 * bytes_of(states) + bytes_of(chunk.qkv, chunk.g, chunk.beta, chunk.u)) / rows;
  const Cost cost{elements_of(in.beta) * chunk_flops(in.heads, 3.5, triangles, triangles),
                  bytes_of(o) + bytes_of_inputs(in) + row * static_cast<double>(tokens.runs.size())};
  WITAN_LAUNCH(stream, gated_delta_decode, cost, o, states, in, tokens, chunk);
}

void gated_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& z,
                           const Tensor& w, double eps) {
  const Cost cost{9 * elements_of(x), bytes_of(y, r, x, z, w)};
  WITAN_LAUNCH(stream, gated_rmsnorm_forward, cost, y, r, x, z, w, eps);
}

void gated_rmsnorm_backward(Stream& stream, const GatedNormGradients& to, const Tensor& dy, const Tensor& x,
                            const Tensor& z, const Tensor& w, const Tensor& r) {
  const Cost cost{22 * elements_of(x), bytes_of(to.dx, to.dz, to.dw, dy, x, z, w, r)};
  WITAN_LAUNCH(stream, gated_rmsnorm_backward, cost, to, dy, x, z, w, r);
}

}  // namespace witan::kernels
