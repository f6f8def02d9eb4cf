// Which tensors of a Megatron-Core model are which of Witan's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/convert/links.h"
#include "witan/convert/tensor_names.h"
#include "witan/model/config.h"

namespace witan {

// The tensors of a model made of Megatron-Core's, by the names of MegatronTensor. Queries, keys and values are one
// matrix there, of each query group its queries, its key and its value. Embedding and head have `vocabulary` rows
// there, those of Witan beyond them are 0. Buffers without a counterpart are left out; a parameter without one is a
// ConfigError.
std::vector<Link> link_megatron(const ModelConfig& model, const std::vector<ModelTensor>& tensors, int64_t vocabulary);

// Megatron-Core's tensors that the links are made of, in their order, with their shapes.
std::vector<std::pair<std::string, Shape>> megatron_tensors(const ModelConfig& model,
                                                            const std::vector<ModelTensor>& tensors,
                                                            int64_t vocabulary);

inline constexpr std::string_view kMegatronFormat = "megatron";
inline constexpr std::string_view kMegatronEmbedding = "embedding.word_embeddings.weight";
inline constexpr std::string_view kMegatronHead = "output_layer.weight";

}  // namespace witan
