#include "witan/nn/compressed_attention/config.h"

#include "witan/base/config/layer_pattern.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/nn/mixer/mixer_spec.h"

namespace witan {
namespace {

constexpr const char* kNoEntries = "none";
constexpr int64_t kMostRatio = 1 << 16;
constexpr const char* kCompressed = "experimental_attention_variant = dsv4_hybrid: ";

}  // namespace

Fields CompressedAttentionConfig::fields() {
  return {
      Field{"csa_compress_ratios", &csa_compress_ratios,
            "Compressed attention: tokens of an entry in each layer, as a list; 0 for a layer without entries, as in "
            "[0,0,4,128]; none: no layer has entries"},
      Field{"csa_sparse_ratio", &csa_sparse_ratio,
            "Compressed attention: the ratio of layers whose entries overlap, and in which an indexer chooses "
            "dsa_indexer_topk of them; in other layers tokens attend to all"}
          .between(1, kMostRatio),
      Field{"csa_window_size", &csa_window_size,
            "Compressed attention: tokens that a token attends to beside entries, itself included"}
          .between(1, 1 << 20),
      Field{"csa_compress_rotary_base", &csa_compress_rotary_base,
            "Compressed attention: rotary base of layers with entries, which rope_scaling_type stretches; others have "
            "rotary_base, unstretched"}
          .above(0),
      Field{"o_groups", &o_groups, "Compressed attention: groups of heads whose outputs are projected together"}
          .between(1, 1 << 16),
      Field{"o_lora_rank", &o_lora_rank, "Compressed attention: channels to which each group of heads is projected"}
          .between(1, 1 << 20),
  };
}

std::vector<int64_t> CompressedAttentionConfig::ratios(int64_t num_layers) const {
  if (csa_compress_ratios == kNoEntries) return std::vector<int64_t>(static_cast<size_t>(num_layers), 0);
  std::vector<int64_t> all = read_layer_numbers(csa_compress_ratios, kMostRatio);
  require<ConfigError>(static_cast<int64_t>(all.size()) == num_layers,
                       "csa_compress_ratios = ", clipped(csa_compress_ratios), ": must be none, or a list of the ",
                       num_layers, " layers, of the tokens of an entry, at most ", kMostRatio,
                       ", as in [0,0]+[4,128]*2");
  return all;
}

void CompressedAttentionConfig::validate(const AttentionConfig& attention, const SparseAttentionConfig& sparse,
                                         int64_t num_layers) const {
  const auto need = [](bool fine, const auto&... why) { require<ConfigError>(fine, kCompressed, why...); };
  need(attention.multi_latent_attention && attention.q_lora_rank > 0,
       "queries have a latent; set multi_latent_attention = true and q_lora_rank above 0");
  need(attention.v_head_dim > 0,
       "v_head_dim is the size of heads, whose keys are their values; set it, to 512 as in DeepSeek-V4");
  need(attention.rotates() && attention.no_rope_freq == kNoEntries,
       "keys rotate in all layers; set position_embedding_type = rope and no_rope_freq = none");
  need(attention.qk_pos_emb_head_dim <= attention.v_head_dim, "qk_pos_emb_head_dim = ", attention.qk_pos_emb_head_dim,
       ", the channels that rotate, is above v_head_dim = ", attention.v_head_dim);
  need(attention.window_size == kNoEntries, "window_size = ", attention.window_size,
       " is not read; set csa_window_size instead, and window_size to none");
  need(attention.attention_dropout == 0, "attention_dropout = ", attention.attention_dropout,
       " is not applied here; set it to 0");
  need(attention.num_attention_heads % o_groups == 0, "o_groups = ", o_groups,
       " does not divide num_attention_heads = ", attention.num_attention_heads);
  need(sparse.dsa_indexer_loss_coeff == 0, "dsa_indexer_loss_coeff = ", sparse.dsa_indexer_loss_coeff,
       ": indexers of entries are not trained; set it to 0");
  for (const int64_t ratio : ratios(num_layers))
    need(ratio != csa_sparse_ratio || attention.qk_pos_emb_head_dim <= sparse.dsa_indexer_head_dim,
         "dsa_indexer_head_dim = ", sparse.dsa_indexer_head_dim,
         " is below qk_pos_emb_head_dim = ", attention.qk_pos_emb_head_dim, ", the channels that rotate");
}

// Sines and cosines keep their size where YaRN stretches them, as in the reference implementation.
std::vector<CompressedSpec> CompressedAttentionConfig::layers(const AttentionConfig& attention,
                                                              const SparseAttentionConfig& sparse, int64_t hidden_size,
                                                              int64_t num_layers) const {
  const auto rope_of = [&](AttentionConfig of) {
    kernels::RopeArgs rope = rotation_of(of.layers(hidden_size, 1).front());
    rope.interleaved = rope.tail = true;
    rope.scaling.magnitude = 1;
    return rope;
  };
  AttentionConfig plain = attention, stretched = attention;
  plain.rope_scaling_type = kNoEntries, plain.rotary_scaling_factor = 1;
  stretched.rotary_base = csa_compress_rotary_base;
  std::vector<CompressedSpec> all;
  for (const int64_t ratio : ratios(num_layers)) {
    CompressedSpec& spec = all.emplace_back();
    spec.num_attention_heads = attention.num_attention_heads;
    spec.head_dim = attention.v_head_dim;
    spec.q_rank = attention.q_lora_rank;
    spec.o_groups = o_groups;
    spec.o_rank = o_lora_rank;
    spec.window = csa_window_size;
    spec.ratio = ratio;
    spec.rope = rope_of(ratio > 0 ? stretched : plain);
    if (ratio != csa_sparse_ratio) continue;
    spec.sparse = true;
    spec.index_heads = sparse.dsa_indexer_n_heads;
    spec.index_head_dim = sparse.dsa_indexer_head_dim;
    spec.index_topk = sparse.dsa_indexer_topk;
  }
  return all;
}

}  // namespace witan
