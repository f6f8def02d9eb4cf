// Mamba-2 (Dao & Gu, "Transformers are SSMs", 2024, arXiv:2405.21060): a state of each head that decays, to which each
// token adds its input under a vector B, and which it reads by a vector C.
//
// With the step dt and the logarithm a of the decay of a token, and the head's S [N, P] before it,
//   S <- e^a S + dt B xᵀ,   y = Sᵀ C + D x
// and S = 0 before the first token of each document, a run of equal sequence ids.
//
// Training computes it in chunks of up to kSsdChunk tokens (section 6 there). With γ the sums of a within the chunk, up
// to a token's own, and S the state before the chunk,
//   M[i,j] = e^(γ[i] - γ[j]) dt[j] C[i].B[j] for j <= i,    Y = e^γ C S + M X + D X
//   S <- e^γ[L-1] S + Σ_j e^(γ[L-1] - γ[j]) dt[j] B[j] x[j]ᵀ
// Chunks begin at a document's first token, so that its bits are the same wherever it lies in a row.
//
// xbc, dxbc [B, S, H P + 2 G N]: a token's x of H heads, then B and C of G groups; head h reads those of group
// h / (H / G)   y, dy [B, S, H P]   dt, a, ddt, da [B, S, H] and D [H] in the accumulator dtype   states [R, H, N, P]
// in the accumulator dtype. All contiguous and, if nothing else is said, of one floating dtype. Sums in float32 or
// wider.
#pragma once

#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/common/launch.h"

namespace witan::kernels {

inline constexpr int64_t kSsdChunk = 64;  // tokens

struct SsdHeads {
  int64_t heads = 0, groups = 0;        // H, G; G divides H
  int64_t head_dim = 0, state_dim = 0;  // P, N
  int64_t inner() const { return heads * head_dim; }
  int64_t of_groups() const { return groups * state_dim; }
  int64_t channels() const { return inner() + 2 * of_groups(); }
};

struct SsdInputs {
  Tensor xbc, dt, a, D;
  Tensor sequence_ids;  // [B, S] int32, or undefined: each row is one document
  SsdHeads heads;
  // Forwards read [B, H, N, P], the state before each row's first token, which begins a chunk; undefined: 0.
  Tensor first = {};
};

// dt = max(softplus(raw + bias), least),  a = -exp(A) dt;  raw [T, H] of a floating dtype, A and bias [H] in the
// accumulator dtype
void ssd_gates_forward(Stream& stream, const Tensor& dt, const Tensor& a, const Tensor& raw, const Tensor& A,
                       const Tensor& bias, double least);
WITAN_KERNEL_TWINS(ssd_gates_forward)

// With d = ddt - exp(A) da, the gradient of dt by both ways:  draw = d sigmoid(raw + bias), 0 where dt is `least`, and
// the sums over tokens dA = Σ da a and dbias = Σ draw before its rounding; [H] in the gradient dtype, or undefined: not
// wanted
struct SsdGateGradients {
  Tensor draw, dA = {}, dbias = {};
  Write write_A = Write::overwrite, write_bias = Write::overwrite;
};
void ssd_gates_backward(Stream& stream, const SsdGateGradients& to, const Tensor& ddt, const Tensor& da,
                        const Tensor& raw, const Tensor& A, const Tensor& bias, double least);
WITAN_KERNEL_TWINS(ssd_gates_backward)

// Workspace of the CUDA twins. bfloat16 heads of up to 128 numbers a channel, P and N multiples of 8, run on tensor
// cores where `chunks` is defined: products of bfloat16 operands, states between kernels in bfloat16, sums in float32.
// All else runs in the accumulator dtype throughout.
struct SsdMemory {
  // On tensor cores. chunks [B, S + 2] int32, scales [B, H, S, 4] float32; for backwards skips [B, S, H] float32, and
  // state_gradients as states.
  Tensor chunks, scales, skips, state_gradients;
  // [B, ceil(S / kSsdChunk), H, N, P]: those before chunks that are not their document's first, whose first tokens are
  // kSsdChunk apart at least, so that token t's has slot t / kSsdChunk. On tensor cores they are bfloat16, in blocks of
  // 8 x 8 (cuda/ssd_tiles.cuh), and the forward fills them too. Else they have the accumulator dtype, for backwards, as
  // have shares [B, S, H, 2 N], gradients of B and C of each head.
  Tensor states, shares;
};
// The workspace of a forward or a backward: undefined tensors where the stream does not plan for CUDA.
SsdMemory ssd_memory(Stream& stream, const Tensor& xbc, const SsdHeads& heads, bool backward);

// `last` [B, H, N, P]: the state after each row's last token; undefined: not wanted. It may be in.first, which tensor
// cores do not read.
void ssd_forward(Stream& stream, const Tensor& y, const Tensor& last, const SsdInputs& in,
                 const SsdMemory& memory = {});
WITAN_KERNEL_TWINS(ssd_forward)

// All gradients. B and C sum those of the heads that read them, in their order. The states before chunks are computed
// again. dD [H] (=|+=) in the gradient dtype; undefined: not wanted.
struct SsdGradients {
  Tensor dxbc, ddt, da, dD = {};
  Write write_D = Write::overwrite;
  SsdMemory memory = {};
};
void ssd_backward(Stream& stream, const SsdGradients& to, const Tensor& dy, const SsdInputs& in);
WITAN_KERNEL_TWINS(ssd_backward)

// The inputs of each row's last chunk, as far as they have been read, so that a generation step continues the chunk
// with the sums of the forward: [R, kSsdChunk, ..].
struct SsdChunk {
  Tensor xbc, dt, a;
};

// A generation step: y [T, H P], xbc [T, ..], dt, a [T, H] of the step's tokens, run after run. Each run continues the
// state of its row, which a token at position 0 begins anew. With a `chunk` y has the bits of the forward over the
// whole sequence, and states are those before each row's last chunk; only the CPU twin takes one. Without, it is
// computed by the recurrence, and states are those after each row's last token.
void ssd_decode(Stream& stream, const Tensor& y, const Tensor& states, const SsdInputs& in, const CacheTokens& tokens,
                const SsdChunk& chunk = {});
WITAN_KERNEL_TWINS(ssd_decode)

// RMSNorm in groups of rows that a gate multiplied: u = x silu(z),  r[t,g] = 1 / sqrt(mean of u^2 over group g + eps),
// y[t,d] = u[t,d] r[t,g] w[d]
// x, y, z [T, D] of one floating dtype   w [D], r [T, groups] accumulator dtype; r is saved for the backward
void gated_group_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& z,
                                 const Tensor& w, double eps);
WITAN_KERNEL_TWINS(gated_group_rmsnorm_forward)

// With n = u r, h = dy w and du = r (h - n mean of h n over the group):  dx = du silu(z),  dz = du x silu'(z),
// dw (=|+=) Σ_t dy n;  dw [D] in the gradient dtype, or undefined: not wanted
struct GatedGroupNormGradients {
  Tensor dx, dz, dw = {};
  Write write = Write::overwrite;  // of dw
};
void gated_group_rmsnorm_backward(Stream& stream, const GatedGroupNormGradients& to, const Tensor& dy, const Tensor& x,
                                  const Tensor& z, const Tensor& w, const Tensor& r);
WITAN_KERNEL_TWINS(gated_group_rmsnorm_backward)

}  // namespace witan::kernels
