// The configuration of DeepSeek Sparse Attention (experimental_attention_variant = dsa), with Megatron-LM's keys where
// it has them.
#pragma once

#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/nn/attention/config.h"
#include "witan/nn/mixer/mixer_spec.h"

namespace witan {

struct SparseAttentionConfig {
  static constexpr const char* kVariant = "dsa";  // of experimental_attention_variant

  int64_t dsa_indexer_n_heads = 64;
  int64_t dsa_indexer_head_dim = 128;
  int64_t dsa_indexer_topk = 2048;
  bool dsa_indexer_rope_interleaved = false;
  std::string dsa_indexer_freq = "none";
  double dsa_indexer_loss_coeff = 0;
  bool dsa_indexer_use_sparse_loss = false;
  bool dsa_dense_warmup = false;

  Fields fields();
  // For models with this variant. Throws ConfigError.
  void validate(const AttentionConfig& attention, int64_t num_layers) const;
  // Gives layers of latent attention their indexers.
  void apply(std::vector<MixerSpec>& layers) const;
  // The layer whose indexer each layer uses. Throws ConfigError for a pattern that does not fit num_layers.
  std::vector<int64_t> sources(int64_t num_layers) const;
};

// Whether a parameter of this name belongs to an indexer.
bool is_of_indexer(const std::string& parameter);

}  // namespace witan
