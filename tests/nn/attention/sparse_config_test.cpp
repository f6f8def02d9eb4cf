#include "witan/nn/attention/sparse_config.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

AttentionConfig latent_with_queries() {
  AttentionConfig config;
  config.multi_latent_attention = true;
  config.q_lora_rank = 8;
  return config;
}

template <class Change>
std::string refused_sparse(const Change& change) {
  AttentionConfig attention = latent_with_queries();
  SparseAttentionConfig sparse;
  change(attention, sparse);
  return test::message_of<ConfigError>([&] { sparse.validate(attention, 4); });
}

TEST(SparseAttentionConfig, LayersWithoutAnIndexerUseTheLastOneBefore) {
  SparseAttentionConfig config;
  EXPECT_EQ(config.sources(3), (std::vector<int64_t>{0, 1, 2}));
  config.dsa_indexer_freq = "[1]*2+[0,0,1,0]";
  EXPECT_EQ(config.sources(6), (std::vector<int64_t>{0, 1, 1, 1, 4, 4}));
}

TEST(SparseAttentionConfig, RefusesWhatItCannotBe) {
  using A = AttentionConfig;
  using S = SparseAttentionConfig;
  EXPECT_NO_THROW(SparseAttentionConfig().validate(latent_with_queries(), 4));
  EXPECT_EQ(
      refused_sparse([](A& a, S&) { a.q_lora_rank = 0; }),
      "experimental_attention_variant = dsa: the indexer reads the latent of queries; set multi_latent_attention = "
      "true and q_lora_rank above 0");
  EXPECT_EQ(refused_sparse([](A&, S& s) { s.dsa_indexer_head_dim = 32; }),
            "experimental_attention_variant = dsa: dsa_indexer_head_dim = 32 is below qk_pos_emb_head_dim = 64, the "
            "channels that rotate");
  EXPECT_EQ(refused_sparse([](A& a, S&) { a.window_size = "7,0"; }),
            "experimental_attention_variant = dsa: window_size = 7,0 hides keys that the indexer may choose; set it to "
            "none");
  EXPECT_EQ(refused_sparse([](A& a, S&) { a.attention_dropout = 0.1; }),
            "experimental_attention_variant = dsa: attention_dropout = 0.1 drops probabilities that the indexer learns "
            "from; set it to 0");
  EXPECT_EQ(
      refused_sparse([](A& a, S&) { a.no_rope_freq = "2"; }),
      "experimental_attention_variant = dsa: the indexer's keys rotate in all layers; set position_embedding_type "
      "= rope and no_rope_freq = none");
  EXPECT_EQ(refused_sparse([](A&, S& s) { s.dsa_dense_warmup = true; }),
            "experimental_attention_variant = dsa: dsa_dense_warmup = true trains indexers by their loss alone; set "
            "dsa_indexer_loss_coeff above 0");
  EXPECT_EQ(refused_sparse([](A&, S& s) {
              s.dsa_dense_warmup = s.dsa_indexer_use_sparse_loss = true;
              s.dsa_indexer_loss_coeff = 1;
            }),
            "experimental_attention_variant = dsa: dsa_dense_warmup = true attends to all keys, and "
            "dsa_indexer_use_sparse_loss = true learns from chosen ones; set one of them to false");
  EXPECT_EQ(
      refused_sparse([](A&, S& s) { s.dsa_indexer_freq = "[0,1,1,1]"; }),
      "dsa_indexer_freq = [0,1,1,1] gives the first layer no indexer, and there is none before it: begin the list "
      "with 1");
  EXPECT_EQ(
      refused_sparse([](A&, S& s) { s.dsa_indexer_freq = "2"; }),
      "dsa_indexer_freq = 2: must be none, or a list of the 4 layers, 1 for one with an indexer of its own, as in "
      "[1,0,0,0]*2");
}

}  // namespace
}  // namespace witan
