// Which elements of a GGUF file's tensors are which of Witan's: llama.cpp's names, blk.N.attn_q.weight and so on.
// Source: gguf-py/gguf/constants.py and convert_hf_to_gguf.py of https://github.com/ggml-org/llama.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/convert/links.h"
#include "witan/convert/tensor_names.h"
#include "witan/model/config.h"

namespace witan {

inline constexpr const char *kGgufEmbedding = "token_embd.weight", *kGgufHead = "output.weight";
inline constexpr const char* kRopeFactors = "rope_freqs.weight";  // of Llama 3.1's positions, which are computed

// Both as in architecture.h. Throws ConfigError for a parameter that llama.cpp's architecture has no place for.
std::vector<Link> gguf_links(const Architecture& architecture, const ModelConfig& model, LatentStorage latent,
                             const std::vector<ModelTensor>& tensors);
std::vector<std::pair<std::string, Shape>> gguf_tensors(const Architecture& architecture, const ModelConfig& model,
                                                        LatentStorage latent, const std::vector<ModelTensor>& tensors);

// Whether llama.cpp holds the tensor in float32 whatever type the file is of: vectors, norms, routers, positions.
bool is_always_f32(std::string_view name, int dims);

}  // namespace witan
