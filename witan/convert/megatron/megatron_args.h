// A Megatron-Core model: the arguments of the training program, which its checkpoints carry, and the names of tensors.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "witan/convert/links.h"
#include "witan/convert/megatron/megatron_pickle.h"
#include "witan/convert/tensor_names.h"
#include "witan/model/config.h"

namespace witan {

using MegatronArguments = std::map<std::string_view, const PickleValue*>;

struct MegatronModel {
  ModelConfig model;  // float32 and without a vocabulary size, which follow from the tensors
  int64_t positions = 0;
};

// Reads the model from untrusted arguments. Throws ConfigError naming argument, value and reason for a model that Witan
// cannot represent.
MegatronModel read_megatron_arguments(const MegatronArguments& arguments, const std::string& where);

// A value of an argument; monostate is None.
using MegatronValue = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>>;

// Returns arguments that read as this model with a context of `positions`. Throws ConfigError naming a setting that
// Megatron-LM has no argument for.
std::vector<std::pair<std::string, MegatronValue>> write_megatron_arguments(const ModelConfig& model,
                                                                            int64_t positions);

// Links a model's tensors to Megatron-Core's, by the names of MegatronTensor. Queries, keys and values are one matrix
// there, which holds for each query group its queries, their gate, its key and its value. Embedding and head have
// `vocabulary` rows there; further rows of Witan's are padding. Buffers without a counterpart are left out; a parameter
// without one is a ConfigError.
std::vector<Link> link_megatron(const ModelConfig& model, const std::vector<ModelTensor>& tensors, int64_t vocabulary);

// Megatron-Core's tensors in the order of the links, with their shapes.
std::vector<std::pair<std::string, Shape>> megatron_tensors(const ModelConfig& model,
                                                            const std::vector<ModelTensor>& tensors,
                                                            int64_t vocabulary);

inline constexpr std::string_view kMegatronFormat = "megatron";
inline constexpr std::string_view kMegatronEmbedding = "embedding.word_embeddings.weight";
inline constexpr std::string_view kMegatronHead = "output_layer.weight";

}  // namespace witan
