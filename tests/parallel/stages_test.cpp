#include "witan/parallel/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

// The sizes of all chunks in layer order: "2 3 | 3 2" for two chunks of two stages.
std::string sizes(const StageSplit& split) {
  const Stages stages(split);
  std::string text;
  for (int chunk = 0; chunk < stages.chunks(); ++chunk) {
    text += chunk > 0 ? " |" : "";
    for (int stage = 0; stage < stages.stages(); ++stage) {
      text += text.empty() ? "" : " ";
      text += std::to_string(stages.layers(stage, chunk).size());
    }
  }
  return text;
}

std::string refusal(const StageSplit& split) {
  return message_of<ConfigError>([&] { const Stages stages(split); });
}

TEST(Stages, AreEvenIfLayersDivide) {
  const Stages stages({.num_layers = 8, .pipeline_model_parallel_size = 2, .num_virtual_stages_per_pipeline_rank = 2});
  EXPECT_EQ(stages.layers(0, 0), (LayerRange{0, 2}));
  EXPECT_EQ(stages.layers(1, 0), (LayerRange{2, 4}));
  EXPECT_EQ(stages.layers(0, 1), (LayerRange{4, 6}));
  EXPECT_EQ(stages.layers(1, 1), (LayerRange{6, 8}));
  EXPECT_EQ(sizes({.num_layers = 12, .pipeline_model_parallel_size = 4}), "3 3 3 3");
  EXPECT_EQ(sizes({.num_layers = 5}), "5");
}

TEST(Stages, FindTheStageOfEmbeddingHeadAndLayers) {
  const Stages stages({.num_layers = 10, .pipeline_model_parallel_size = 3, .num_virtual_stages_per_pipeline_rank = 2});
  for (int stage = 0; stage < 3; ++stage)
    for (int chunk = 0; chunk < 2; ++chunk) {
      EXPECT_EQ(stages.has_embedding(stage, chunk), stage == 0 && chunk == 0);
      EXPECT_EQ(stages.has_head(stage, chunk), stage == 2 && chunk == 1);
      for (int64_t layer = stages.layers(stage, chunk).first; layer < stages.layers(stage, chunk).last; ++layer)
        EXPECT_EQ(stages.stage_of(layer), stage);
    }
  const Stages one({.num_layers = 2});
  EXPECT_TRUE(one.has_embedding(0, 0) && one.has_head(0, 0));
}

TEST(Stages, AcceptTheSizeOfAChunk) {
  EXPECT_EQ(sizes({.num_layers = 24, .pipeline_model_parallel_size = 4, .num_layers_per_virtual_pipeline_stage = 2}),
            "2 2 2 2 | 2 2 2 2 | 2 2 2 2");
  EXPECT_EQ(sizes({.num_layers = 4, .pipeline_model_parallel_size = 1, .num_layers_per_virtual_pipeline_stage = 4}),
            "4");
  EXPECT_EQ(sizes({.num_layers = 22,
                   .pipeline_model_parallel_size = 4,
                   .num_layers_per_virtual_pipeline_stage = 3,
                   .account_for_embedding_in_pipeline_split = true,
                   .account_for_loss_in_pipeline_split = true}),
            "2 3 3 3 | 3 3 3 2");
}

TEST(Stages, CanCountTheEmbeddingAndTheLoss) {
  EXPECT_EQ(
      sizes({.num_layers = 7, .pipeline_model_parallel_size = 4, .account_for_embedding_in_pipeline_split = true}),
      "1 2 2 2");
  EXPECT_EQ(sizes({.num_layers = 7, .pipeline_model_parallel_size = 4, .account_for_loss_in_pipeline_split = true}),
            "2 2 2 1");
  EXPECT_EQ(sizes({.num_layers = 2,
                   .pipeline_model_parallel_size = 4,
                   .account_for_embedding_in_pipeline_split = true,
                   .account_for_loss_in_pipeline_split = true}),
            "0 1 1 0");
  EXPECT_EQ(sizes({.num_layers = 1,
                   .account_for_embedding_in_pipeline_split = true,
                   .account_for_loss_in_pipeline_split = true}),
            "1");
}

// Expected values are those of Megatron-LM's get_num_layers_to_build and get_transformer_layer_offset.
TEST(Stages, MatchMegatronsUnevenEnds) {
  EXPECT_EQ(sizes({.num_layers = 14,
                   .pipeline_model_parallel_size = 4,
                   .decoder_first_pipeline_num_layers = 3,
                   .decoder_last_pipeline_num_layers = 1}),
            "3 5 5 1");
  EXPECT_EQ(sizes({.num_layers = 11, .pipeline_model_parallel_size = 4, .decoder_first_pipeline_num_layers = 2}),
            "2 3 3 3");
  EXPECT_EQ(sizes({.num_layers = 7,
                   .pipeline_model_parallel_size = 2,
                   .decoder_first_pipeline_num_layers = 5,
                   .decoder_last_pipeline_num_layers = 2}),
            "5 2");
  const Stages stages({.num_layers = 20,
                       .pipeline_model_parallel_size = 4,
                       .num_virtual_stages_per_pipeline_rank = 2,
                       .decoder_first_pipeline_num_layers = 6,
                       .decoder_last_pipeline_num_layers = 2});
  EXPECT_EQ(stages.layers(0, 0), (LayerRange{0, 3}));
  EXPECT_EQ(stages.layers(2, 0), (LayerRange{6, 9}));
  EXPECT_EQ(stages.layers(0, 1), (LayerRange{10, 13}));
  EXPECT_EQ(stages.layers(3, 1), (LayerRange{19, 20}));
}

TEST(Stages, GiveRemainingLayersToChunksBeforeTheLast) {
  EXPECT_EQ(sizes({.num_layers = 10, .pipeline_model_parallel_size = 4}), "2 3 3 2");
  EXPECT_EQ(sizes({.num_layers = 7, .pipeline_model_parallel_size = 2}), "4 3");
  EXPECT_EQ(sizes({.num_layers = 11, .pipeline_model_parallel_size = 2, .num_virtual_stages_per_pipeline_rank = 2}),
            "3 3 | 3 2");
  EXPECT_EQ(sizes({.num_layers = 9,
                   .pipeline_model_parallel_size = 2,
                   .num_virtual_stages_per_pipeline_rank = 2,
                   .decoder_first_pipeline_num_layers = 3}),
            "1 3 | 2 3");
  EXPECT_EQ(sizes({.num_layers = 12, .pipeline_model_parallel_size = 4, .decoder_last_pipeline_num_layers = 1}),
            "3 4 4 1");
}

// Layers [first, last) by Megatron-LM's formulas for even splits.
LayerRange megatrons(const StageSplit& split, int64_t chunks, int64_t stage, int64_t chunk) {
  const int64_t p = split.pipeline_model_parallel_size;
  const int64_t embedding = split.account_for_embedding_in_pipeline_split ? 1 : 0;
  const int64_t counted = split.num_layers + embedding + (split.account_for_loss_in_pipeline_split ? 1 : 0);
  const int64_t build = counted / p / chunks;
  const bool is_first = stage == 0 && chunk == 0, is_last = stage == p - 1 && chunk == chunks - 1;
  const int64_t offset = chunk * (counted / chunks) + stage * build - (is_first ? 0 : embedding);
  const int64_t size = build - (is_first ? embedding : 0) - (is_last ? counted - embedding - split.num_layers : 0);
  return {offset, offset + size};
}

TEST(Stages, HoldEveryLayerOnceAndMatchMegatron) {
  int same = 0;
  for (int64_t layers = 1; layers <= 30; ++layers)
    for (int64_t p = 1; p <= 8; ++p)
      for (int64_t chunks = 1; chunks <= (p == 1 ? 1 : 4); ++chunks)
        for (const bool embedding : {false, true})
          for (const bool loss : {false, true}) {
            const int64_t counted = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
            if (p * chunks > counted) continue;
            const StageSplit split{.num_layers = layers,
                                   .pipeline_model_parallel_size = p,
                                   .num_virtual_stages_per_pipeline_rank = chunks,
                                   .account_for_embedding_in_pipeline_split = embedding,
                                   .account_for_loss_in_pipeline_split = loss};
            const Stages stages(split);
            int64_t next = 0, smallest = counted, largest = 0;
            for (int chunk = 0; chunk < chunks; ++chunk)
              for (int stage = 0; stage < p; ++stage) {
                const LayerRange range = stages.layers(stage, chunk);
                ASSERT_EQ(range.first, next);
                next = range.last;
                const int64_t weighed = range.size() + (embedding && stages.has_embedding(stage, chunk) ? 1 : 0) +
                                        (loss && stages.has_head(stage, chunk) ? 1 : 0);
                smallest = std::min(smallest, weighed);
                largest = std::max(largest, weighed);
                if (counted % (p * chunks) != 0) continue;
                ASSERT_EQ(range, megatrons(split, chunks, stage, chunk));
                ++same;
              }
            ASSERT_EQ(next, layers);
            ASSERT_GE(smallest, 1);
            ASSERT_LE(largest - smallest, 1);
          }
  EXPECT_GT(same, 1000);
}

TEST(Stages, ErrorsNameSizesThatWork) {
  EXPECT_EQ(refusal({.num_layers = 0}), "num_layers = 0: the nearest that works is 1");
  EXPECT_EQ(refusal({.num_layers = 4, .pipeline_model_parallel_size = 6}),
            "pipeline_model_parallel_size = 6: more pipeline stages than the 4 layers; the nearest that works is 4");
  EXPECT_EQ(
      refusal({.num_layers = 4, .num_virtual_stages_per_pipeline_rank = 2}),
      "num_virtual_stages_per_pipeline_rank = 2: interleaving needs several pipeline stages, and there is one; the "
      "nearest that works is 1");
  EXPECT_EQ(
      refusal({.num_layers = 4, .num_layers_per_virtual_pipeline_stage = 2}),
      "num_layers_per_virtual_pipeline_stage = 2: interleaving needs several pipeline stages, and there is one; the "
      "nearest that works is 4");
  EXPECT_EQ(refusal({.num_layers = 7, .pipeline_model_parallel_size = 2, .num_virtual_stages_per_pipeline_rank = 4}),
            "num_virtual_stages_per_pipeline_rank = 4: 2 pipeline stages of 4 virtual stages need 8 layers, and there "
            "are 7; the nearest "
            "that works is 3");
}

TEST(Stages, RefuseChunksThatDoNotFit) {
  StageSplit split{.num_layers = 24, .pipeline_model_parallel_size = 4, .num_layers_per_virtual_pipeline_stage = 5};
  EXPECT_EQ(refusal(split),
            "num_layers_per_virtual_pipeline_stage = 5: it does not divide the 6 layers of a pipeline stage; the "
            "nearest that "
            "works is 6");
  split.num_layers = 22;
  EXPECT_EQ(refusal(split),
            "num_layers_per_virtual_pipeline_stage = 5: 22 layers are not divisible by 4 pipeline stages; set "
            "num_virtual_stages_per_pipeline_rank instead");
  split.num_virtual_stages_per_pipeline_rank = 2;
  EXPECT_EQ(refusal(split),
            "num_layers_per_virtual_pipeline_stage = 5: it already sets the number of virtual stages; drop "
            "num_virtual_stages_per_pipeline_rank = 2");
  split.num_virtual_stages_per_pipeline_rank = 0;
  split.decoder_last_pipeline_num_layers = 1;
  EXPECT_EQ(refusal(split),
            "num_layers_per_virtual_pipeline_stage = 5: pipeline stages of different sizes cannot have virtual stages "
            "of one size; set "
            "num_virtual_stages_per_pipeline_rank instead");
}

TEST(Stages, RefuseEndsThatDoNotFit) {
  StageSplit split{.num_layers = 10, .pipeline_model_parallel_size = 3, .decoder_first_pipeline_num_layers = 9};
  EXPECT_EQ(refusal(split),
            "decoder_first_pipeline_num_layers = 9: every virtual stage needs a layer, and there are 10 for 3 pipeline "
            "stages of 1; the "
            "nearest that works is 8");
  split.decoder_first_pipeline_num_layers = 7;
  split.decoder_last_pipeline_num_layers = 3;
  EXPECT_EQ(refusal(split),
            "decoder_last_pipeline_num_layers = 3: with decoder_first_pipeline_num_layers = 7, the 10 layers leave "
            "another virtual stage without a layer; the nearest that works is 2");
  split.pipeline_model_parallel_size = 2;
  split.decoder_last_pipeline_num_layers = 4;
  EXPECT_EQ(
      refusal(split),
      "decoder_last_pipeline_num_layers = 4: with decoder_first_pipeline_num_layers = 7, two pipeline stages have 11 "
      "layers and the model 10; the nearest that works is 3");
  split.pipeline_model_parallel_size = 1;
  EXPECT_EQ(refusal(split), "decoder_first_pipeline_num_layers = 7: the only stage has all 10 layers; drop it");
  split.pipeline_model_parallel_size = 2;
  split.account_for_loss_in_pipeline_split = true;
  EXPECT_EQ(refusal(split),
            "decoder_first_pipeline_num_layers = 7: it sets the layers of a pipeline stage itself; drop "
            "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split");
  EXPECT_EQ(refusal({.num_layers = 10,
                     .pipeline_model_parallel_size = 2,
                     .num_virtual_stages_per_pipeline_rank = 3,
                     .decoder_last_pipeline_num_layers = 1}),
            "decoder_last_pipeline_num_layers = 1: every virtual stage needs a layer, and there are 10 for 2 pipeline "
            "stages of 3; the "
            "nearest that works is 3");
}

// The nearest size that an error names works, and no nearer one does.
TEST(Stages, ErrorsNameTheNearestEndThatWorks) {
  const auto works = [](const StageSplit& split) {
    try {
      const Stages stages(split);
      return std::string();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  int refused = 0;
  for (int64_t first = 1; first <= 12; ++first)
    for (int64_t last = 1; last <= 12; ++last)
      for (int64_t p = 2; p <= 4; ++p) {
        StageSplit split{.num_layers = 10,
                         .pipeline_model_parallel_size = p,
                         .num_virtual_stages_per_pipeline_rank = 2,
                         .decoder_first_pipeline_num_layers = first,
                         .decoder_last_pipeline_num_layers = last};
        const std::string words = works(split);
        if (!words.starts_with("decoder_last")) continue;
        ++refused;
        int64_t nearest = 0;
        for (int64_t other = 1; other <= 12; ++other) {
          split.decoder_last_pipeline_num_layers = other;
          if (works(split).empty() && (nearest == 0 || std::abs(other - last) < std::abs(nearest - last)))
            nearest = other;
        }
        split.decoder_last_pipeline_num_layers = last;
        const auto named = std::stoll(words.substr(words.rfind(' ') + 1));
        split.decoder_last_pipeline_num_layers = named;
        if (const std::string next = works(split); next.empty()) {
          EXPECT_EQ(named, nearest) << words;
        } else {
          // It would work alone: the other end, which the error names, contributes.
          EXPECT_NE(next.find("with decoder_first_pipeline_num_layers"), std::string::npos) << words << "\n" << next;
        }
      }
  EXPECT_GT(refused, 50);
}

TEST(Stages, DescribeTheLayersOfARank) {
  const Stages stages({.num_layers = 5, .pipeline_model_parallel_size = 2, .num_virtual_stages_per_pipeline_rank = 2});
  const StageLayers first = stages.held_by(0), last = stages.held_by(1);
  EXPECT_EQ(first.chunks, (std::vector<LayerRange>{{0, 1}, {2, 4}}));
  EXPECT_EQ(last.chunks, (std::vector<LayerRange>{{1, 2}, {4, 5}}));
  EXPECT_TRUE(first.first && !first.last && !last.first && last.last);
}

}  // namespace
}  // namespace witan
