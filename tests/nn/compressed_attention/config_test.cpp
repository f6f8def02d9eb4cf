#include "witan/nn/compressed_attention/config.h"

#include <gmock/gmock.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

struct Configs {
  Configs() {
    attention.multi_latent_attention = true;
    attention.q_lora_rank = 8;
    attention.v_head_dim = 64;
    attention.num_attention_heads = 4;
    compressed.o_groups = 2;
    compressed.csa_compress_ratios = "[0,4,128]";
  }
  void validate() const { compressed.validate(attention, sparse, 3); }

  AttentionConfig attention;
  SparseAttentionConfig sparse;
  CompressedAttentionConfig compressed;
};

TEST(CompressedAttentionConfig, GivesEachLayerItsEntriesAndRotation) {
  Configs with;
  with.attention.rope_scaling_type = "yarn";
  with.attention.rotary_scaling_factor = 16;
  with.validate();
  const auto layers = with.compressed.layers(with.attention, with.sparse, 256, 3);
  ASSERT_EQ(layers.size(), 3U);
  EXPECT_EQ(layers[0].ratio, 0);
  EXPECT_FALSE(layers[0].sparse);
  EXPECT_EQ(layers[0].rope.base, 10000);
  EXPECT_EQ(layers[0].rope.scaling.type, kernels::RopeScaling::Type::none);
  EXPECT_TRUE(layers[1].sparse);
  EXPECT_EQ(layers[1].index_topk, 2048);
  EXPECT_FALSE(layers[2].sparse);
  EXPECT_EQ(layers[2].ratio, 128);
  for (size_t layer : {1, 2}) {
    const kernels::RopeArgs& rope = layers[layer].rope;
    EXPECT_EQ(rope.base, 160000);
    EXPECT_EQ(rope.dims, 64);
    EXPECT_TRUE(rope.tail && rope.interleaved);
    EXPECT_EQ(rope.scaling.type, kernels::RopeScaling::Type::yarn);
    EXPECT_EQ(rope.scaling.magnitude, 1);
  }
  with.compressed.csa_compress_ratios = "none";
  EXPECT_EQ(with.compressed.layers(with.attention, with.sparse, 256, 3)[1].ratio, 0);
}

TEST(CompressedAttentionConfig, RefusesWhatItCannotBe) {
  const auto refusal = [](const auto& change) {
    Configs with;
    change(with);
    return test::message_of<ConfigError>([&] { with.validate(); });
  };
  const std::string head = "experimental_attention_variant = dsv4_hybrid: ";
  EXPECT_EQ(refusal([](Configs& c) { c.attention.multi_latent_attention = false; }),
            head + "queries have a latent; set multi_latent_attention = true and q_lora_rank above 0");
  EXPECT_EQ(refusal([](Configs& c) { c.attention.v_head_dim = 0; }),
            head + "v_head_dim is the size of heads, whose keys are their values; set it, to 512 as in DeepSeek-V4");
  EXPECT_EQ(refusal([](Configs& c) { c.attention.no_rope_freq = "2"; }),
            head + "keys rotate in all layers; set position_embedding_type = rope and no_rope_freq = none");
  EXPECT_EQ(refusal([](Configs& c) { c.attention.v_head_dim = 32; }),
            head + "qk_pos_emb_head_dim = 64, the channels that rotate, is above v_head_dim = 32");
  EXPECT_EQ(refusal([](Configs& c) { c.attention.window_size = "4,0"; }),
            head + "window_size = 4,0 is not read; set csa_window_size instead, and window_size to none");
  EXPECT_EQ(refusal([](Configs& c) { c.attention.attention_dropout = 0.1; }),
            head + "attention_dropout = 0.1 is not applied here; set it to 0");
  EXPECT_EQ(refusal([](Configs& c) { c.compressed.o_groups = 3; }),
            head + "o_groups = 3 does not divide num_attention_heads = 4");
  EXPECT_EQ(refusal([](Configs& c) { c.sparse.dsa_indexer_loss_coeff = 1; }),
            head + "dsa_indexer_loss_coeff = 1: indexers of entries are not trained; set it to 0");
  EXPECT_EQ(refusal([](Configs& c) { c.sparse.dsa_indexer_head_dim = 32; }),
            head + "dsa_indexer_head_dim = 32 is below qk_pos_emb_head_dim = 64, the channels that rotate");
  for (const char* ratios : {"[4,4]", "4", "[1,2,x]", "[1,2,99999]", "[1,-2,3]"})
    EXPECT_EQ(refusal([&](Configs& c) { c.compressed.csa_compress_ratios = ratios; }),
              std::string("csa_compress_ratios = ") + ratios +
                  ": must be none, or a list of the 3 layers, of the tokens of an entry, at most 65536, as in "
                  "[0,0]+[4,128]*2");
}

}  // namespace
}  // namespace witan
