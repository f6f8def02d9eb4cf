#include "witan/train/rollouts/rollout.h"

#include <gtest/gtest.h>

#include "support/message_of.h"

namespace witan {
namespace {

using test::message_of;

TEST(Rollout, SurvivesAFile) {
  const Rollout rollout{.row = 7,
                        .sampled_at = 3,
                        .prompt = {1, 2},
                        .completion = {3},
                        .logprobs = {-0.1234567f},
                        .ended = true,
                        .text = {"a \"b\"", "c\n", "d"},
                        .reward = 0.1,
                        .advantage = -1.0 / 3,
                        .rewards = {{"exact", 0.1}},
                        .replaced = 2,
                        .discarded = true};
  const Rollout read = Rollout::of_line(rollout.to_line(), "here");
  EXPECT_EQ(read.to_line(), rollout.to_line());
  EXPECT_EQ(read.logprobs, rollout.logprobs);
  EXPECT_EQ(read.advantage, rollout.advantage);
  EXPECT_EQ(read.rewards, rollout.rewards);
  EXPECT_EQ(read.replaced, 2);
  EXPECT_EQ(read.sampled_at, 3);
  EXPECT_TRUE(read.discarded);
  EXPECT_NE(message_of<DataError>([] { Rollout::of_line("{\"row\": 1}", "x.jsonl, line 2"); }).find("x.jsonl, line 2"),
            std::string::npos);
}

TEST(Rollout, OfTurnsSurvivesAFile) {
  Rollout rollout{.row = 7,
                  .prompt = {1, 2},
                  .completion = {3, 4, 5},
                  .logprobs = {-0.5f, 0, -0.25f},
                  .mask = {1, 0, 1},
                  .text = {"a", "c", "d"},
                  .next = Rollout::Next::reply,
                  .cut_by_turns = true,
                  .rewritten = true};
  rollout.text.turn = 2;
  rollout.text.messages = R"([{"content":"b","role":"assistant"},{"content":"x","role":"tool"}])";
  const Rollout read = Rollout::of_line(rollout.to_line(), "here");
  EXPECT_EQ(read.to_line(), rollout.to_line());
  EXPECT_EQ(read.mask, rollout.mask);
  EXPECT_EQ(read.text.turn, 2);
  EXPECT_EQ(read.text.messages, rollout.text.messages);
  EXPECT_EQ(read.next, Rollout::Next::reply);
  EXPECT_EQ(read.sampled_tokens(), 2);
  rollout.mask.pop_back();
  EXPECT_NE(message_of<DataError>([&] {
              Rollout::of_line(rollout.to_line(), "x.jsonl");
            }).find("x.jsonl: completion_mask has 2 values for 3 tokens"),
            std::string::npos);
}

TEST(Rollout, BecomesARow) {
  RunConfig config;
  config.data.seq_length = 5;
  config.objective.objective = "policy";
  Rollout one{.prompt = {10, 11}, .completion = {12, 13}, .logprobs = {-1, -2}, .advantage = 0.5}, skipped = one;
  skipped.skipped = true;
  const Batch batch = batch_of({one, skipped}, config);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{10, 11, 12, 0, 0, 10, 11, 12, 0, 0}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{11, 12, 13, 0, 0, 11, 12, 13, 0, 0}));
  EXPECT_EQ(batch.sequence_ids, (std::vector<int32_t>{0, 0, 0, kPadding, kPadding, 0, 0, 0, kPadding, kPadding}));
  EXPECT_EQ(batch.loss_mask, (std::vector<float>{0, 1, 1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.columns[0].values, (std::vector<float>{0, 0.5, 0.5, 0, 0, 0, 0.5, 0.5, 0, 0}));
  EXPECT_EQ(batch.columns[1].values, (std::vector<float>{0, -1, -2, 0, 0, 0, -1, -2, 0, 0}));
  EXPECT_EQ(batch.loss_tokens, 2);
  EXPECT_EQ(batch.loss_sequences, 1);
}

TEST(Rollout, ThatIsCutMayBeMasked) {
  RunConfig config;
  config.data.seq_length = 3;
  config.objective.objective = "policy";
  Rollout cut{.prompt = {10}, .completion = {12, 13}, .logprobs = {-1, -2}, .advantage = 0.5}, whole = cut;
  whole.ended = true;
  EXPECT_EQ(batch_of({cut, whole}, config).loss_mask, (std::vector<float>{1, 1, 0, 1, 1, 0}));
  config.rollout.mask_truncated_completions = true;
  const Batch batch = batch_of({cut, whole}, config);
  EXPECT_EQ(batch.loss_mask, (std::vector<float>{0, 0, 0, 1, 1, 0}));
  EXPECT_EQ(batch.loss_tokens, 2);
  EXPECT_EQ(batch.loss_sequences, 1) << "means are over the others";
}

}  // namespace
}  // namespace witan
