// Gated DeltaNet (Yang, Kautz & Hatamizadeh, 2024, arXiv:2412.06464): a state of each head that decays, and into which
// the delta rule writes values under keys.
//
// With q̂ = q / sqrt(|q|^2 + 1e-6) / sqrt(dk) and k̂ = k / sqrt(|k|^2 + 1e-6) of a token, and S [dk, dv] before it,
//   S <- e^g S,   u = β (v - Sᵀ k̂),   S <- S + k̂ uᵀ,   o = Sᵀ q̂
// and S = 0 before the first token of each document, a run of equal sequence ids. In Kimi Delta Attention (Kimi Team,
// "Kimi Linear", 2025, arXiv:2510.26692) g is a vector [dk] of each head, e^g a diagonal matrix, and so are γ and e^γ
// below, where e^(γ[i] - γ[j]) then lies within the products of k̂ and q̂; on GPUs these g must not be above 0.
//
// Training computes it in chunks of up to kDeltaChunk tokens by the WY form (Yang et al., "Parallelizing Linear
// Transformers with the Delta Rule", 2024, arXiv:2406.06484). With γ the sums of g within the chunk, up to a token's
// own, and S the state before the chunk,
//   A[i,j] = β[i] e^(γ[i] - γ[j]) k̂[i].k̂[j] for j < i,      (1 + A) U = β (V - e^γ K̂ S)
//   P[i,j] = e^(γ[i] - γ[j]) q̂[i].k̂[j]      for j <= i,     O = e^γ Q̂ S + P U
//   S <- e^γ[L-1] S + Σ_j e^(γ[L-1] - γ[j]) k̂[j] u[j]ᵀ
// Chunks begin at a document's first token, so that its bits are the same wherever it lies in a row.
//
// qkv, dqkv [B, S, 2 G dk + H dv]: a token's G queries, G keys and H values, side by side; value head h reads query and
// key h / (H / G)   o, do [B, S, H dv]   beta, dbeta [B, S, H], g, dg [B, S, H] or, of channels, [B, S, H dk], in the
// accumulator dtype   states [R, H, dk, dv] in the accumulator dtype. All contiguous and, if nothing else is said, of
// one floating dtype. Sums in float32 or wider.
#pragma once

#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/common/launch.h"

namespace witan::kernels {

inline constexpr int64_t kDeltaChunk = 64;     // tokens
inline constexpr double kDeltaNormEps = 1e-6;  // of the norms of queries and keys

// How often a head decays in a token: once, or in each channel of its keys.
enum class Decay : bool { of_head, of_channels };

struct DeltaHeads {
  int64_t keys = 0, values = 0;        // G, H; G divides H
  int64_t key_dim = 0, value_dim = 0;  // dk, dv
  int64_t key_channels() const { return keys * key_dim; }
  int64_t value_channels() const { return values * value_dim; }
  int64_t channels() const { return 2 * key_channels() + value_channels(); }
};

struct DeltaInputs {
  Tensor qkv, g, beta;
  Tensor sequence_ids;  // [B, S] int32, or undefined: each row is one document
  DeltaHeads heads;
  // Forwards read [B, H, dk, dv], the state before each row's first token, which begins a chunk; undefined: 0.
  Tensor first = {};

  int64_t decays() const { return g.shape().last() / heads.values; }  // of a head in a token: 1 or dk
  Decay decay() const { return decays() == 1 ? Decay::of_head : Decay::of_channels; }
};

// g = -exp(A) softplus(a + bias),  beta = sigmoid(b);  b [T, H] and a of one floating dtype, A [H] and bias in the
// accumulator dtype. a [T, H] and bias [H], or decays of channels, a [T, H dk] and bias [H dk], to which the head's A
// applies.
void delta_gates_forward(Stream& stream, const Tensor& g, const Tensor& beta, const Tensor& a, const Tensor& b,
                         const Tensor& A, const Tensor& bias);
WITAN_KERNEL_TWINS(delta_gates_forward)

// da = dg (-exp(A)) sigmoid(a + bias),  db = dbeta beta (1 - beta),  and the sums over tokens dA = Σ dg g and
// dbias = Σ da before its rounding; [H] in the gradient dtype
struct DeltaGateGradients {
  Tensor da, db, dA, dbias;
  Write write_A = Write::overwrite, write_bias = Write::overwrite;
};
void delta_gates_backward(Stream& stream, const DeltaGateGradients& to, const Tensor& dg, const Tensor& dbeta,
                          const Tensor& a, const Tensor& b, const Tensor& A, const Tensor& bias);
WITAN_KERNEL_TWINS(delta_gates_backward)

// Workspace of the CUDA twins. bfloat16 heads of up to 128 key channels, dk and dv multiples of 8, run on tensor cores
// where it is defined: products of bfloat16 operands, states and solutions between kernels in bfloat16, sums in
// float32. With decays of channels that takes keys for each head of values, G = H. All else runs in the accumulator
// dtype throughout.
struct DeltaMemory {
  // On tensor cores. chunks [B, S + 2] int32, scales [B, S, H, 4] float32, inverse and links [B, S, H, kDeltaChunk]
  // bfloat16. decays float32: [B, S, H], or of channels [B, ceil(S / kDeltaChunk), H, dk]. rows [B, S, H, 3, dk]
  // bfloat16, with decays of channels: e^γ k̂, e^(γ[L-1] - γ) k̂ and e^γ q̂.
  Tensor chunks, scales, decays, inverse, links, rows;
  // For backwards: states [B, ceil(S / kDeltaChunk), H, dk, dv]: those before chunks that are not their document's
  // first, whose first tokens are kDeltaChunk apart at least, so that token t's has slot t / kDeltaChunk. On tensor
  // cores they are bfloat16 and transposed, [.., dv, dk], as are state_gradients, and u and du are [B, S, H, dv]. Else
  // they have the accumulator dtype, as have shares [B, S, H, 2 dk], gradients of q̂ and k̂ of each head.
  Tensor states, state_gradients, u, du, shares;
};
// The workspace of a forward or a backward: undefined tensors where the stream does not plan for CUDA.
DeltaMemory delta_memory(Stream& stream, const DeltaInputs& in, bool backward);

// `last` [B, H, dk, dv]: the state after each row's last token; undefined: not wanted. It may be in.first.
void gated_delta_forward(Stream& stream, const Tensor& o, const Tensor& last, const DeltaInputs& in,
                         const DeltaMemory& memory = {});
WITAN_KERNEL_TWINS(gated_delta_forward)

// All gradients. Queries and keys sum those of the heads that read them, in their order. The states before chunks are
// computed again. The CUDA twin needs a backward's memory.
struct DeltaGradients {
  Tensor dqkv, dg, dbeta;
  DeltaMemory memory = {};
};
void gated_delta_backward(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in);
WITAN_KERNEL_TWINS(gated_delta_backward)

// The tokens of each row's last chunk, as far as they have been read: their inputs and their U, so that a generation
// step continues the chunk with the sums of the forward.
struct DeltaChunk {
  Tensor qkv, g, beta;  // [R, kDeltaChunk, ..]
  Tensor u;             // [R, kDeltaChunk, H dv], accumulator dtype
};

// A generation step: o [T, H dv], qkv [T, ..], g, beta [T, H] of the step's tokens, run after run. Each run continues
// the state of its row, which a token at position 0 begins anew. With a `chunk` o has the bits of the forward over the
// whole sequence, and states are those before each row's last chunk; only the CPU twin takes one. Without, it is
// computed by the recurrence, and states are those after each row's last token.
void gated_delta_decode(Stream& stream, const Tensor& o, const Tensor& states, const DeltaInputs& in,
                        const CacheTokens& tokens, const DeltaChunk& chunk = {});
WITAN_KERNEL_TWINS(gated_delta_decode)

// RMSNorm of rows that a gate multiplies: y[t,d] = x[t,d] r[t] w[d] silu(z[t,d]),  r[t] = 1 / sqrt(mean_d x^2 + eps)
// x, y, z [T, D] of one floating dtype   w [D], r [T] accumulator dtype; r is saved for the backward
void gated_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& z,
                           const Tensor& w, double eps);
WITAN_KERNEL_TWINS(gated_rmsnorm_forward)

// With n = x r and h = dy silu(z):  dx = r (w h - n mean_d(w h n)),  dz = dy n w silu'(z),  dw (=|+=) Σ_t h n;  dw [D]
// in the gradient dtype, or undefined: not wanted
struct GatedNormGradients {
  Tensor dx, dz, dw;
  Write write = Write::overwrite;  // of dw
};
void gated_rmsnorm_backward(Stream& stream, const GatedNormGradients& to, const Tensor& dy, const Tensor& x,
                            const Tensor& z, const Tensor& w, const Tensor& r);
WITAN_KERNEL_TWINS(gated_rmsnorm_backward)

}  // namespace witan::kernels
