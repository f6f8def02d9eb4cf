// The two backends of attention on a GPU: cuDNN where it applies, else Witan's own kernels.
#pragma once

#include <string>

#include "witan/kernels/attention/attention.h"

namespace witan::kernels::cuda {

// The backend that a training step with such inputs uses, "cudnn 9.19.0" or "witan". Builds cuDNN's plans for them.
std::string attention_backend(Stream& stream, const AttentionInputs& in);

// Witan's own kernels, even where cuDNN applies.
namespace own {
decltype(::witan::kernels::attention_forward) attention_forward;
decltype(::witan::kernels::attention_backward) attention_backward;
}  // namespace own

}  // namespace witan::kernels::cuda

// Attention by cuDNN, for the cases that it does best: bfloat16, whole sequences, no dropout, heads of a multiple of 8
// up to 256; and the blocks of a ring (comm/context.h), whose pairs of queries and keys are a square, causal and
// perhaps in a sliding window, or a rectangle.
//
// The library is loaded at the first call that could use it. Plans are built once for each shape, which takes about a
// second, and kept. The backward may add to dq in float32 with atomics, so that the last bits of dq differ from call to
// call. A repeatable backward keeps the gradient of scores, 2 bytes for each pair of tokens and head, in its workspace
// instead. The forward repeats to the bit for tensors of one shape; batch-invariant calls use Witan's own kernel.
namespace witan::kernels::cuda::cudnn {

// These return false, and do nothing, if the call is not one of those above (kernels/attention/attention_path.h), no
// library was found, or no plan's workspace fits into Stream::scratch or in.workspace. Only shapes and the machine
// decide.
bool attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in);
bool attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                        const Tensor& lse, const AttentionInputs& in);

// Whether attention_forward and attention_backward would return true; builds their plans.
bool has_attention(Stream& stream, const AttentionInputs& in);

std::string version();   // "9.19.0"; empty if the library cannot be loaded
std::string why_none();  // the reason why it cannot be loaded; empty if it can

}  // namespace witan::kernels::cuda::cudnn
