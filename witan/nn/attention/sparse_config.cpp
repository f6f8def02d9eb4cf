#include "witan/nn/attention/sparse_config.h"

#include <algorithm>

#include "witan/base/config/layer_pattern.h"
#include "witan/base/error.h"

namespace witan {
namespace {

constexpr const char* kEveryLayer = "none";
constexpr const char* kSparse = "experimental_attention_variant = dsa: ";

}  // namespace

Fields SparseAttentionConfig::fields() {
  return {
      Field{"dsa_indexer_n_heads", &dsa_indexer_n_heads, "Sparse attention: heads of the indexer"}.between(1, 1 << 16),
      Field{
          "dsa_indexer_head_dim", &dsa_indexer_head_dim,
          "Sparse attention: channels of each of the indexer's queries, and of its key; the first qk_pos_emb_head_dim "
          "of them rotate"}
          .between(2, 256),
      Field{"dsa_indexer_topk", &dsa_indexer_topk, "Sparse attention: keys that each token attends to"}.between(
          1, 1 << 24),
      Field{"dsa_indexer_rope_interleaved", &dsa_indexer_rope_interleaved,
            "Sparse attention: rotate pairs of neighbouring channels of the indexer (GLM-5) instead of halves "
            "(DeepSeek-V3.2)"},
      Field{
          "dsa_indexer_freq", &dsa_indexer_freq,
          "Sparse attention: layers with an indexer of their own, as a list, 1 for a layer with one and 0 for a layer "
          "that attends to the keys that the last indexer before it chose, as in [1]*3+[0,0,0,1]*18 (GLM-5.2); none: "
          "all layers have one"},
      Field{"dsa_indexer_loss_coeff", &dsa_indexer_loss_coeff,
            "Sparse attention: coefficient of the divergence of the indexer's scores from attention, summed over "
            "layers; 0: the indexer is not trained"}
          .at_least(0),
      Field{"dsa_indexer_use_sparse_loss", &dsa_indexer_use_sparse_loss,
            "Sparse attention: take the indexer's loss over the chosen keys instead of over all that a token sees"},
      Field{"dsa_dense_warmup", &dsa_dense_warmup,
            "Sparse attention: train the indexer alone, while tokens attend to all keys that they see"},
  };
}

std::vector<int64_t> SparseAttentionConfig::sources(int64_t num_layers) const {
  std::vector<bool> own(static_cast<size_t>(num_layers), true);
  if (dsa_indexer_freq != kEveryLayer) {
    if (dsa_indexer_freq.find('[') != std::string::npos) own = read_layer_list(dsa_indexer_freq);
    require<ConfigError>(
        dsa_indexer_freq.find('[') != std::string::npos && own.size() == static_cast<size_t>(num_layers),
        "dsa_indexer_freq = ", dsa_indexer_freq, ": must be none, or a list of the ", num_layers,
        " layers, 1 for one with an indexer of its own, as in [1,0,0,0]*2");
  }
  require<ConfigError>(own.empty() || own.front(), "dsa_indexer_freq = ", dsa_indexer_freq,
                       " gives the first layer no indexer, and there is none before it: begin the list with 1");
  std::vector<int64_t> from;
  for (size_t layer = 0; layer < own.size(); ++layer)
    from.push_back(own[layer] ? static_cast<int64_t>(layer) : from.back());
  return from;
}

void SparseAttentionConfig::validate(const AttentionConfig& attention, int64_t num_layers) const {
  const auto need = [](bool fine, const auto&... why) { require<ConfigError>(fine, kSparse, why...); };
  need(attention.multi_latent_attention && attention.q_lora_rank > 0,
       "the indexer reads the latent of queries; set multi_latent_attention = true and q_lora_rank above 0");
  need(attention.rotates() && attention.no_rope_freq == "none",
       "the indexer's keys rotate in all layers; set position_embedding_type = rope and no_rope_freq = none");
  need(dsa_indexer_head_dim >= attention.qk_pos_emb_head_dim, "dsa_indexer_head_dim = ", dsa_indexer_head_dim,
       " is below qk_pos_emb_head_dim = ", attention.qk_pos_emb_head_dim, ", the channels that rotate");
  need(attention.window_size == "none", "window_size = ", attention.window_size,
       " hides keys that the indexer may choose; set it to none");
  need(attention.attention_dropout == 0, "attention_dropout = ", attention.attention_dropout,
       " drops probabilities that the indexer learns from; set it to 0");
  need(dsa_indexer_loss_coeff > 0 || !dsa_dense_warmup,
       "dsa_dense_warmup = true trains indexers by their loss alone; set dsa_indexer_loss_coeff above 0");
  need(!dsa_dense_warmup || !dsa_indexer_use_sparse_loss,
       "dsa_dense_warmup = true attends to all keys, and dsa_indexer_use_sparse_loss = true learns from chosen ones; "
       "set one of them to false");
  sources(num_layers);
}

void SparseAttentionConfig::apply(std::vector<MixerSpec>& layers) const {
  const std::vector<int64_t> from = sources(static_cast<int64_t>(layers.size()));
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    auto* const latent = std::get_if<LatentSpec>(&layers[layer]);
    if (latent == nullptr) continue;
    IndexerSpec& indexer = latent->indexer;
    indexer.heads = dsa_indexer_n_heads;
    indexer.head_dim = dsa_indexer_head_dim;
    indexer.topk = dsa_indexer_topk;
    indexer.rope = latent->rope;
    indexer.rope.interleaved = dsa_indexer_rope_interleaved;
    indexer.loss_coefficient = dsa_indexer_loss_coeff;
    indexer.sparse_loss = dsa_indexer_use_sparse_loss;
    indexer.warm_up = dsa_dense_warmup;
    indexer.layer = static_cast<int64_t>(layer);
    indexer.from = from[layer];
    indexer.lends = layer + 1 < layers.size() && from[layer + 1] == indexer.layer;
  }
}

bool is_of_indexer(const std::string& parameter) {
  return parameter.find(".indexer.") != std::string::npos;
}

}  // namespace witan
