// A model in a GGUF file: its configuration by the file's metadata (general.architecture, llama.*, qwen3moe.* …), and
// its tensors by llama.cpp's names, blk.N.attn_q.weight and so on.
// Source: gguf-py/gguf/constants.py, convert_hf_to_gguf.py and src/llama-model.cpp of
// https://github.com/ggml-org/llama.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/convert/config/gguf_model.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/links.h"
#include "witan/convert/tensor_names.h"
#include "witan/model/config.h"

namespace witan {

// Reads the untrusted keys of the file's architecture by way of an equivalent config.json, with the same errors. Throws
// ConfigError naming an unknown architecture, an unknown key, or a key whose value Witan cannot represent;
// CorruptionError for a key of another type.
HfModel read_gguf_config(const GgufMetadata& metadata, const GgufFacts& facts);

// Whether the file of a tied model holds the embedding twice, since llama.cpp requires an output matrix of its own for
// the architecture. Witan reads such a file as an equivalent untied model.
bool gguf_copies_head(const Architecture& architecture, const ModelConfig& model);

// Returns the keys of a file that reads as this model with a context of `positions`. Throws ConfigError naming the key
// whose value llama.cpp's architecture cannot have.
GgufMetadata write_gguf_config(const Architecture& architecture, const ModelConfig& model, int64_t positions);

// llama.cpp's name: "llama" for llama, mistral and mixtral, "qwen3moe", "deepseek2" …
std::string_view gguf_architecture(const Architecture& architecture);

// The divisors of the frequencies in a model with Llama 3.1's positions, or in Gemma 4's layers with full attention, of
// whose pairs some do not turn; empty for other models.
std::vector<float> rope_factors(const ModelConfig& model);

inline constexpr const char *kGgufEmbedding = "token_embd.weight", *kGgufHead = "output.weight";
inline constexpr const char* kRopeFactors = "rope_freqs.weight";  // divisors of frequencies

// The file's counterparts of link_model() and other_tensors() (tensor_names.h). Throws ConfigError for a parameter that
// llama.cpp's architecture has no place for.
std::vector<Link> gguf_links(const Architecture& architecture, const ModelConfig& model, LatentStorage latent,
                             const std::vector<ModelTensor>& tensors);
std::vector<std::pair<std::string, Shape>> gguf_tensors(const Architecture& architecture, const ModelConfig& model,
                                                        LatentStorage latent, const std::vector<ModelTensor>& tensors);

// Whether llama.cpp holds the tensor in float32 in every file: vectors, norms, routers, weights of an indexer's heads,
// short convolutions, positions, and what joins parallel residual streams.
bool is_always_f32(std::string_view name, int dims);

}  // namespace witan
