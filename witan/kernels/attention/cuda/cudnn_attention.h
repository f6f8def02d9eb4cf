// Attention by cuDNN, for what it does best: bfloat16, whole sequences, no dropout, heads of a multiple of 8 up to 128,
// or up to 256 where those of values are of another size; and blocks of them whose pairs are a square, causal and maybe
// in a sliding window, or a rectangle: those of a ring (comm/context.h).
// The library is loaded at the first call that could use it; plans are built once for each shape, which takes a second
// or so, and kept. Its backward may add to dq in float32 with atomics, so that the last bits of dq differ from call to
// call; where it is to be repeatable it keeps the gradient of scores, 2 bytes for each pair of tokens and head, in its
// workspace instead. Its forward repeats to the bit for tensors of one shape; one that
// is to be batch-invariant is left to our own kernel.
#pragma once

#include <string>

#include "witan/kernels/attention/attention.h"

namespace witan::kernels::cuda::cudnn {

// False: nothing was done, because the call is not one of those above (kernels/attention/attention_path.h), no library
// was found, or no plan's workspace fits into Stream::scratch or in.workspace. Shapes and the machine alone decide.
bool attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in);
bool attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                        const Tensor& lse, const AttentionInputs& in);

// Whether attention_forward and attention_backward would return true; builds their plans.
bool has_attention(Stream& stream, const AttentionInputs& in);

std::string version();   // "9.19.0"; empty where the library cannot be loaded
std::string why_none();  // empty where it can

}  // namespace witan::kernels::cuda::cudnn
