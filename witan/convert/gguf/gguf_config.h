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

// Reads the keys of the file's architecture, untrusted: as a config.json that says the same, whose errors it gives.
// Throws ConfigError naming an architecture that Witan does not know, or a key with a value that it cannot represent,
// keys of unknown meaning included; CorruptionError for keys of another type.
HfModel read_gguf_config(const GgufMetadata& metadata, const GgufFacts& facts);

// Whether a file has a tied model's embedding a second time, as its output matrix: llama.cpp reads one of its own in
// some architectures, and knows no tied models of these. Witan reads such a file as an untied model that computes the
// same.
bool gguf_copies_head(const Architecture& architecture, const ModelConfig& model);

// The keys of a file which reads as this model, meant for so many positions. Throws ConfigError naming the key that
// llama.cpp's architecture cannot have as the model has it.
GgufMetadata write_gguf_config(const Architecture& architecture, const ModelConfig& model, int64_t positions);

// llama.cpp's name: "llama" of llama, mistral and mixtral, "qwen3moe", "deepseek2" …
std::string_view gguf_architecture(const Architecture& architecture);

// By how much Llama 3.1 divides each frequency of its positions; empty for other models.
std::vector<float> llama3_factors(const ModelConfig& model);

inline constexpr const char *kGgufEmbedding = "token_embd.weight", *kGgufHead = "output.weight";
inline constexpr const char* kRopeFactors = "rope_freqs.weight";  // of Llama 3.1's positions, which are computed

// Both as in tensor_names.h. Throws ConfigError for a parameter that llama.cpp's architecture has no place for.
std::vector<Link> gguf_links(const Architecture& architecture, const ModelConfig& model, LatentStorage latent,
                             const std::vector<ModelTensor>& tensors);
std::vector<std::pair<std::string, Shape>> gguf_tensors(const Architecture& architecture, const ModelConfig& model,
                                                        LatentStorage latent, const std::vector<ModelTensor>& tensors);

// Whether llama.cpp holds the tensor in float32 whatever type the file is of: vectors, norms, routers, positions.
bool is_always_f32(std::string_view name, int dims);

}  // namespace witan
