// The configuration of a model: the parts' own configurations, and what only the whole knows.
#pragma once

#include <map>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/model/layer_spec.h"
#include "witan/moe/config.h"
#include "witan/nn/attention/config.h"
#include "witan/nn/layers.h"
#include "witan/tensor/dtype.h"

namespace witan {

// Why fp8_recipe = mxfp8 is refused.
inline constexpr const char* kNoMxfp8 = "scales blocks of 32 numbers, which only Blackwell's tensor cores multiply";

enum class Recompute : uint8_t { none, selective, full };

struct ModelConfig {
  int64_t num_layers = 4;
  int64_t hidden_size = 256;
  int64_t vocab_size = 0;  // words that the loss knows; 0: the tokenizer's
  bool untie_embeddings_and_output_weights = false;
  int64_t make_vocab_size_divisible_by = 1;
  double hidden_dropout = 0;     // of the embedding, and of what attention and MLP add to the residual stream
  bool add_bias_linear = false;  // in the projections of attention and MLP
  bool add_mlp_bias = false;     // in those of dense MLPs alone
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
  double logit_scale = 1;
  double logit_soft_cap = 0;
  int64_t mtp_num_layers = 0;            // of multi-token prediction, behind the others
  double mtp_loss_scaling_factor = 0.1;  // of the mean of their losses
  int64_t lora_rank = 0;                 // of the adapters of low rank; 0: there are none
  double lora_alpha = 32;                // their output is scaled by lora_alpha / lora_rank
  double lora_dropout = 0;               // of their input
  std::string lora_target_modules;       // which matrices have adapters, with commas between them; empty: all
  std::string freeze;                    // patterns of parameters' names that are not trained, with commas between them
  std::string recompute_modules;         // of "selective": with commas between them; empty: all of them

  AttentionConfig attention;
  MlpConfig mlp;
  MoeConfig moe;
  NormConfig norm;
  // The mixers that a program gives layers, by their number, in place of those of `attention`. No key sets them.
  std::map<int64_t, MixerSpec> mixers;

  Fields fields();
  void validate() const;  // throws ConfigError; vocab_size must be set
  // All layers, from the first on. Throws ConfigError for patterns that do not fit.
  std::vector<LayerSpec> layers() const;
  // Rows of the embedding and of the head: words, then those that make their number a multiple of
  // make_vocab_size_divisible_by, which no id names, no loss knows and no step changes from 0.
  int64_t padded_vocab_size() const {
    return (vocab_size + make_vocab_size_divisible_by - 1) / make_vocab_size_divisible_by *
           make_vocab_size_divisible_by;
  }
  // Of each layer the table of value embeddings that it reads, from 1 on; 0: none.
  std::vector<int64_t> value_embeddings() const;
  int64_t value_embedding_tables() const;  // how many there are
  // Layers read what earlier ones wrote beside the residual stream.
  bool joins_layers() const { return value_embedding_freq != "none" || skip_connections || embedding_residual; }
  DType compute_dtype() const { return dtype_from_name(dtype); }
  MixerModel around_mixers() const;
  bool fp8() const { return fp8_format != "none"; }
  bool fp8(int64_t layer) const;  // whether this layer's products are of 8 bits, from 0 on
  Recompute recompute() const;
  Bias linear_bias() const { return add_bias_linear ? Bias::zeros : Bias::none; }
  Bias mlp_bias() const { return add_mlp_bias ? Bias::zeros : linear_bias(); }
};

}  // namespace witan
