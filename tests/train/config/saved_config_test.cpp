// The keys that identify a run and that a resumed run must keep.
#include "witan/train/config/saved_config.h"

#include <gtest/gtest.h>

#include <functional>

#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::small_config;

TEST(Identity, ConsistsOfModelDataBatchAndSeed) {
  RunConfig before = small_config(), now = before;
  now.train.train_iters = 99;
  now.optimizer.lr = 1;
  now.parallel.ranks = 4;
  now.model.recompute_granularity = "full";
  now.model.hidden_dropout = now.model.attention.attention_dropout = 0.1;
  EXPECT_TRUE(changed_identity(before, now).empty());
  now.model.num_layers = 5;
  now.train.seed = 7;
  EXPECT_EQ(changed_identity(before, now), (std::vector<std::string>{"seed = 7 (was 1234)", "num_layers = 5 (was 2)"}));
}

TEST(Identity, ErrorsNameEveryPart) {
  const auto change = [](const std::function<void(RunConfig&)>& edit) {
    RunConfig before = small_config(), now = before;
    edit(now);
    const auto changes = changed_identity(before, now);
    return changes.size() == 1 ? changes[0].substr(0, changes[0].find(' ')) : cat(changes.size(), " changes");
  };
  EXPECT_EQ(change([](RunConfig& c) { c.train.micro_batch_size = 1; }), "micro_batch_size");
  EXPECT_EQ(change([](RunConfig& c) { c.train.global_batch_size = 32; }), "global_batch_size");
  EXPECT_EQ(change([](RunConfig& c) { c.data.seq_length = 24; }), "seq_length");
  EXPECT_EQ(change([](RunConfig& c) { c.data.eod_mask_loss = true; }), "eod_mask_loss");
  EXPECT_EQ(change([](RunConfig& c) { c.data.bpe.vocab_size = 999; }), "tokenizer_vocab_size");
  EXPECT_EQ(change([](RunConfig& c) { c.model.moe.moe_router_topk = 1; }), "moe_router_topk");
  EXPECT_EQ(change([](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; }), "0 changes");
  EXPECT_EQ(change([](RunConfig& c) { c.model.moe.moe_pool_factor = 1.5; }), "0 changes");
  EXPECT_EQ(change([](RunConfig& c) { c.model.moe.moe_exchange_factor = 1.5; }), "0 changes");
  EXPECT_EQ(change([](RunConfig& c) { c.model.moe.moe_replicated_experts = 2; }), "0 changes");
  EXPECT_EQ(change([](RunConfig& c) { c.model.fp8_keep_weights = true; }), "0 changes");
  EXPECT_EQ(change([](RunConfig& c) { c.model.moe.moe_shared_expert_overlap = true; }), "0 changes");
}

}  // namespace
}  // namespace witan
