// The configuration of a model: the configurations of its parts, the keys of the whole, and what is resolved from them:
// layers, pipeline stages and recomputed modules. What is trained of a model is in model/frozen.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/moe/config.h"
#include "witan/nn/attention/config.h"
#include "witan/nn/attention/sparse_config.h"
#include "witan/nn/compressed_attention/config.h"
#include "witan/nn/gated_delta/config.h"
#include "witan/nn/hyper_connection.h"
#include "witan/nn/layers.h"
#include "witan/nn/lora.h"
#include "witan/nn/mamba2/config.h"
#include "witan/nn/mixer/mixer_spec.h"
#include "witan/nn/mlp.h"
#include "witan/nn/parameter.h"
#include "witan/tensor/dtype.h"

namespace witan {

// The reason why fp8_recipe = mxfp8 is refused.
inline constexpr const char* kNoMxfp8 = "scales blocks of 32 numbers, which only Blackwell's tensor cores multiply";

enum class Recompute : uint8_t { none, selective, full };

// One layer of a model, resolved once from the configuration: everything that builds, counts or plans layers reads it.
struct LayerSpec {
  MixerSpec mixer;
  bool moe = false;  // an MoE layer, else a dense one
  MlpConfig mlp;  // of the dense layer or of each expert, with its own ffn_hidden_size; 0: the layer is its mixer alone
  std::optional<int64_t> skip_from = {};  // the earlier layer whose output is added to this one's input
  bool embedding_residual = false;        // the embedding is mixed into its input
  bool table_of_experts = false;          // a table chooses experts by the token
  std::string norm_placement = "pre";     // of this layer: pre, post or both
  // The dense MLP beside the experts of this MoE layer, if it has one (moe_parallel_mlp).
  std::optional<MlpConfig> parallel_mlp = {};

  bool has_mlp() const { return mlp.ffn_hidden_size > 0; }  // an MLP, dense or of experts, after its mixer
};

struct ModelConfig {
  int64_t num_layers = 4;
  int64_t hidden_size = 256;
  int64_t vocab_size = 0;  // tokens; 0: the tokenizer's
  bool untie_embeddings_and_output_weights = false;
  int64_t make_vocab_size_divisible_by = 1;
  double hidden_dropout = 0;       // of the embedding and of the outputs of attention and MLP
  double neftune_noise_alpha = 0;  // of noise on embeddings (EmbeddingNoise); 0: none
  bool add_bias_linear = false;    // biases in the projections of attention and MLP
  bool add_mlp_bias = false;       // biases in dense MLPs only
  std::string init_method = "normal";
  double init_method_std = 0.02;
  std::string dtype = "float32";
  std::string fp8_format = "none";  // of the operands of products with matrices: none | e4m3 | hybrid
  std::string fp8_recipe = "blockwise";
  int64_t fp8_margin = 0;
  int64_t fp8_amax_history_len = 1;
  std::string fp8_amax_compute_algo = "most_recent";
  bool first_last_layers_bf16 = false;
  int64_t num_layers_at_start_in_bf16 = 1;
  int64_t num_layers_at_end_in_bf16 = 1;
  bool fp8_keep_weights = false;
  std::string recompute_granularity = "none";
  std::string norm_placement = "pre";
  std::string value_embedding_freq = "none";
  bool skip_connections = false;
  bool embedding_residual = false;
  bool embedding_norm = false;
  bool layer_scalar = false;                // a layer's output is multiplied by a number that is loaded, not trained
  int64_t num_kv_shared_layers = 0;         // last layers that attend to keys and values of earlier ones
  bool use_double_wide_mlp = false;         // dense MLPs of these layers have twice ffn_hidden_size
  int64_t hidden_size_per_layer_input = 0;  // channels of a token's embedding for each layer; 0: there are none
  double embedding_multiplier = 1;
  double residual_multiplier = 1;
  double logit_scale = 1;
  double logit_soft_cap = 0;
  int64_t mtp_num_layers = 0;            // modules of multi-token prediction
  double mtp_loss_scaling_factor = 0.1;  // coefficient of the mean of their losses
  int64_t lora_rank = 0;                 // 0: no adapters
  double lora_alpha = 32;                // the adapters' output is scaled by lora_alpha / lora_rank
  bool lora_use_rslora = false;          // and by lora_alpha / sqrt(lora_rank) instead
  bool lora_use_dora = false;            // and rows of adapted matrices are rescaled to trained magnitudes
  double lora_dropout = 0;               // of the adapters' input
  std::string lora_target_modules;       // matrices with adapters, separated by commas; empty: all
  std::string freeze;                    // patterns of parameters that are not trained, separated by commas
  std::string frozen_format = "dtype";   // of matrices that are not trained (kernels/quantised/quantised.h)
  std::string frozen_experts_format = "same";
  std::string frozen_head_format = "dtype";
  std::string recompute_modules;  // of "selective", separated by commas; empty: norms and activations

  AttentionConfig attention;
  LinearAttentionConfig linear_attention;          // of layers that have it instead
  SparseAttentionConfig sparse_attention;          // of all layers, if has_sparse_attention()
  CompressedAttentionConfig compressed_attention;  // of all layers, if has_compressed_attention()
  MambaConfig mamba;                               // of all layers, or of those with Mamba-2
  ResidualStreamsConfig streams;
  MlpConfig mlp;
  MoeConfig moe;
  NormConfig norm;
  // Mixers that a program sets for layers, by number, instead of those that follow from keys. No key sets them.
  std::map<int64_t, MixerSpec> mixers;

  Fields fields();
  void validate() const;  // throws ConfigError; vocab_size must be set
  // All layers, from the first on. Throws ConfigError for layer patterns that do not fit num_layers.
  std::vector<LayerSpec> layers() const;
  // Rows of the embedding and of the head: the vocabulary, padded to a multiple of make_vocab_size_divisible_by with
  // rows of zeros that no id names, the loss ignores and no step changes.
  int64_t padded_vocab_size() const {
    return (vocab_size + make_vocab_size_divisible_by - 1) / make_vocab_size_divisible_by *
           make_vocab_size_divisible_by;
  }
  // The value embedding of each layer, numbered from 1 on; 0: none.
  std::vector<int64_t> value_embeddings() const;
  int64_t value_embedding_tables() const;  // their number
  // Whether layers read more than the residual stream: value embeddings, outputs of earlier layers, the embedding, an
  // embedding for each layer.
  bool joins_layers() const {
    return value_embedding_freq != "none" || skip_connections || embedding_residual || hidden_size_per_layer_input > 0;
  }
  // Such a key with its value, for a message.
  std::string joining_key() const;
  bool has_sparse_attention() const {
    return linear_attention.experimental_attention_variant == SparseAttentionConfig::kVariant;
  }
  bool has_compressed_attention() const {
    return linear_attention.experimental_attention_variant == CompressedAttentionConfig::kVariant;
  }
  bool has_mamba() const { return mamba.has_mamba() || linear_attention.mamba2(); }
  DType compute_dtype() const { return dtype_from_name(dtype); }
  MixerModel around_mixers() const;
  // Channels of the residual stream between blocks: those of all its parallel streams.
  int64_t residual_width() const { return streams.num_residual_streams * hidden_size; }
  bool fp8() const { return fp8_format != "none"; }
  bool fp8(int64_t layer) const;  // whether the products of this layer, counted from 0 on, have 8-bit operands
  Recompute recompute() const;
  Bias linear_bias() const { return add_bias_linear ? Bias::zeros : Bias::none; }
  Bias mlp_bias() const { return add_mlp_bias ? Bias::zeros : linear_bias(); }
};

// Whether the parameter has a row for each token, of which those beyond the vocabulary are padding.
bool has_vocabulary_rows(std::string_view parameter);

// The layers of the model, followed by the blocks of its MTP modules, which are like the last layer.
std::vector<LayerSpec> layers_with_mtp(const ModelConfig& config);

struct LayerRange {
  int64_t first, last;  // [first, last)
  int64_t size() const { return last - first; }
  bool contains(int64_t layer) const { return layer >= first && layer < last; }
  bool operator==(const LayerRange&) const = default;
};

// The layers that a pipeline-parallel rank holds (parallel/stages.h): one or more chunks, its virtual stages, between
// which the residual stream passes through those of other ranks.
struct StageLayers {
  std::vector<LayerRange> chunks;  // in the order of layers
  bool first = true;               // the first chunk begins with the embedding
  bool last = true;                // the last one ends with the norm and the head

  static StageLayers all(int64_t num_layers) { return {{{0, num_layers}}}; }
  int count() const { return static_cast<int>(chunks.size()); }
};

// The modules of a layer that selective recomputation recomputes, named as in Megatron-LM's --recompute-modules.
struct RecomputeModules {
  bool layernorm = false;       // norms: their inputs are kept instead of their outputs
  bool mlp_act = false;         // activations of dense MLPs and of shared experts
  bool moe_act = false;         // activations of experts
  bool shared_experts = false;  // shared experts as a whole
  bool mlp = false;             // dense MLPs as a whole, of which the input is kept
  bool moe = false;             // MoE layers as a whole: router, dispatch, experts and combine
  bool mla_up_proj = false;     // queries, keys and values of latent attention, of which the latents are kept
};

// The modules listed in recompute_modules, or norms and activations if the list is empty; none unless
// recompute_granularity is selective. core_attn, Megatron-LM's default, is accepted and ignored, since attention keeps
// no scores. Throws ConfigError for an unknown name, whatever the granularity, and for mla_up_proj without latent
// attention.
RecomputeModules read_recompute_modules(const ModelConfig& config);

}  // namespace witan
