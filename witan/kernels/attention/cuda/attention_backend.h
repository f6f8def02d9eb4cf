// Who computes attention on a GPU: cuDNN where it applies, else kernels of our own.
#pragma once

#include <string>

#include "witan/kernels/attention/attention.h"

namespace witan::kernels::cuda {

// "cudnn 9.19.0" or "witan": whom a training step with such inputs uses. Builds cuDNN's plans for them.
std::string attention_backend(Stream& stream, const AttentionInputs& in);

// Our own kernels, whatever cuDNN could do.
namespace own {
decltype(::witan::kernels::attention_forward) attention_forward;
decltype(::witan::kernels::attention_backward) attention_backward;
}  // namespace own

}  // namespace witan::kernels::cuda
