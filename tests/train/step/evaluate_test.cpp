// The loss on held-out text depends on its sequences, not on their grouping, the layout, or padding of a batch. Router
// statistics depend on micro-batches, not on the layout or padding of a batch.
#include "witan/train/step/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "support/temp_folder.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/moe/routers/capacity.h"
#include "witan/moe/routers/router.h"
#include "witan/tokenizer/training/bpe_trainer.h"
#include "witan/train/data/run_data.h"

namespace witan {
namespace {

using testing::laid_out;

// Tokens are bytes; with the capacity, experts would drop most of them.
class EvaluateTest : public ::testing::Test {
 protected:
  EvaluateTest() : config_(testing::small_config()) {
    BpeTrainerConfig bytes;
    bytes.vocab_size = 257;  // the bytes and an end of text
    tokenizer_ = std::make_shared<Tokenizer>(BpeTrainer(bytes).train());
    config_.model.dtype = "float64";
    config_.model.num_layers = 4;
    config_.model.vocab_size = 260;
    config_.model.moe.num_experts = 4;
    config_.model.moe.moe_expert_capacity_factor = 0.5;
    config_.model.moe.moe_token_drop_policy = "position";
    config_.data.seq_length = 16;
    config_.data.held_out_fraction = 0.3;
    config_.train.global_batch_size = 8;
    config_.train.eval_iters = 3;
  }

  // Evaluates the held-out text with an untrained engine.
  Evaluation evaluated(const RunConfig& config) {
    const RunData data = open(config);
    EXPECT_EQ(data.held_out->per_epoch(), kSamples);
    return evaluated(config, [&](int rank, int64_t ranks) {
      return held_out_batches(data, evaluation_samples(data, config.train), config.train.micro_batch_size, rank, ranks);
    });
  }
  RunData open(const RunConfig& config) { return open_run_data(config, tokenizer_, tokens()); }
  Evaluation evaluated(const RunConfig& config,
                       const std::function<std::vector<Batch>(int rank, int64_t ranks)>& batches) {
    config.validate();
    const int ranks = static_cast<int>(config.parallel.ranks);
    const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
    const Plan plan = make_plan(resolve(config, {}));
    ThreadWorld world(ranks);
    Evaluation found;
    world.run([&](int rank) {
      ThreadPool pool(static_cast<int>(config.parallel.threads));
      Stream stream({Device::Kind::cpu}, Arena::reserve(plan.ranks[static_cast<size_t>(rank)].arena_bytes), pool);
      const Groups groups = make_groups(world, layout, rank);
      Engine engine(stream, groups, resolve(config, {}));
      const Evaluation here = engine.evaluate(batches(layout.data_rank(rank), layout.data_ranks()));
      if (rank == 0) found = here;
    });
    return found;
  }

  static constexpr int64_t kSamples = 13;  // not divisible by any micro-batch larger than one
  RunConfig config_;

 private:
  const fs::path& tokens() {
    if (!written_.empty()) return written_;
    written_ = folder_ / "tokens";
    IndexedWriter writer(written_, tokenizer_->vocab_size());
    for (int document = 0; document < 30; ++document) {
      std::string text;
      for (int i = 0; i < 23; ++i) text += static_cast<char>('a' + (document * document + 3 * i + i * i / 5) % 26);
      auto ids = tokenizer_->encode(text);
      ids.push_back(*tokenizer_->end_of_text());
      writer.add(ids);
    }
    writer.finish();
    return written_;
  }

  test::TempFolder folder_;
  fs::path written_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

void expect_same(const Evaluation& one, const Evaluation& other) {
  EXPECT_EQ(one.targets, other.targets);
  EXPECT_NEAR(one.loss(), other.loss(), 1e-12 * one.loss());
}

// All router statistics, for every layer and the model.
void expect_same_routers(const Evaluation& one, const Evaluation& other) {
  ASSERT_FALSE(one.router.empty());
  ASSERT_EQ(one.router.values().size(), other.router.values().size());
  for (const StepStatistics::Value& value : one.router.values()) {
    const StepStatistics::Value& same = *other.router.find(value.declared.name);
    ASSERT_EQ(same.layers.size(), value.layers.size()) << value.declared.name;
    for (size_t layer = 0; layer < value.layers.size(); ++layer)
      for (size_t i = 0; i < value.layers[layer].size(); ++i)
        EXPECT_NEAR(same.layers[layer][i], value.layers[layer][i], 1e-12 * std::abs(value.layers[layer][i]))
            << value.declared.name << " of layer " << layer;
    if (value.model) {
      EXPECT_NEAR(same.model.value(), *value.model, 1e-12 * std::abs(*value.model)) << value.declared.name;
    }
  }
}

// Assignments to the experts of all layers.
int64_t assignments_of(const Evaluation& evaluation) {
  int64_t sum = 0;
  for (const auto& layer : evaluation.router.counts(kExpertCounts))
    for (const int64_t count : layer) sum += count;
  return sum;
}

TEST_F(EvaluateTest, RoutersCountEveryTokenAndNoPadding) {
  const int64_t expected =
      kSamples * config_.data.seq_length * config_.model.moe.moe_router_topk * config_.model.num_layers;
  for (const int64_t sequences : {1, 2, 4}) {
    config_.train.micro_batch_size = sequences;
    const Evaluation found = evaluated(config_);
    EXPECT_EQ(assignments_of(found), expected) << sequences << " sequences in a micro-batch";
    EXPECT_GT(found.router.model(kDroppedShare).value(), 0.1)
        << "a capacity of half the balanced load would drop tokens";
    EXPECT_GE(found.router.model(kBalanceLoss).value(), 0.9);
    EXPECT_GE(found.router.model(kLoadMaxOverMean).value(), 1);
  }
}

// Each micro-batch has the same weight, however many of its rows are padding.
TEST_F(EvaluateTest, BalanceOfSequencesIsTheirMean) {
  config_.train.micro_batch_size = 1;
  const Evaluation one = evaluated(config_);
  config_.model.moe.moe_router_load_balancing_type = "seq_aux_loss";
  const Evaluation by_sequence = evaluated(config_);
  EXPECT_NEAR(by_sequence.router.model(kBalanceLoss).value(), one.router.model(kBalanceLoss).value(), 1e-12)
      << "a micro-batch is one sequence";
  config_.train.micro_batch_size = 4;
  const Evaluation of_four = evaluated(config_);
  EXPECT_GT(std::abs(of_four.router.model(kBalanceLoss).value() - one.router.model(kBalanceLoss).value()), 1e-9)
      << "the last micro-batch has a single sequence, which has the weight of four";
}

TEST_F(EvaluateTest, IgnoresACapacity) {
  config_.train.micro_batch_size = 1;
  const Evaluation limited = evaluated(config_);
  EXPECT_EQ(limited.targets, kSamples * config_.data.seq_length);
  config_.model.moe.moe_expert_capacity_factor = 0;
  expect_same(evaluated(config_), limited);
}

TEST_F(EvaluateTest, IsIndependentOfTheGroupingOfSequences) {
  config_.train.micro_batch_size = 1;
  const Evaluation one = evaluated(config_);
  for (const char* policy : {"position", "probs"})
    for (const int64_t sequences : {1, 2, 4}) {
      SCOPED_TRACE(cat(sequences, " sequences in a micro-batch, dropped by ", policy));
      config_.model.moe.moe_token_drop_policy = policy;
      config_.train.micro_batch_size = sequences;
      expect_same(one, evaluated(config_));
    }
}

// Packed pieces of documents and padding give the results of each piece in a row of its own.
TEST_F(EvaluateTest, PackedDocumentsAndPaddingAreIndependent) {
  config_.data.data_packing = "best_fit";
  config_.data.reset_position_ids = config_.data.reset_attention_mask = true;
  config_.train.full_validation = true;
  const RunData data = open(config_);
  const int64_t samples = evaluation_samples(data, config_.train);
  EXPECT_EQ(samples, data.held_out->per_epoch());
  const auto packed = [&](int rank, int64_t ranks) {
    return held_out_batches(data, samples, config_.train.micro_batch_size, rank, ranks);
  };
  const auto with_other_padding = [&](int rank, int64_t ranks) {
    auto batches = packed(rank, ranks);
    for (Batch& batch : batches)
      for (size_t i = 0; i < batch.tokens.size(); ++i)
        if (batch.loss_mask[i] == 0) batch.tokens[i] = batch.targets[i] = 77;
    return batches;
  };
  const auto alone = [&](int, int64_t) {
    std::vector<Batch> batches;
    for (int64_t sample = 0; sample < samples; ++sample)
      for (const auto& [document, begin, places] : data.held_out->pieces_of(sample)) {
        std::vector<int32_t> tokens(static_cast<size_t>(places) + 1);
        data.held_out->dataset().read(document, begin, tokens);
        Batch batch;
        batch.sequences = 1;
        batch.sequence_length = config_.data.seq_length;
        batch.loss_tokens = places;
        for (int64_t i = 0; i < config_.data.seq_length; ++i) {
          const bool there = i < places;
          const auto at = static_cast<size_t>(there ? i : 0);
          batch.tokens.push_back(tokens[at]);
          batch.targets.push_back(tokens[at + 1]);
          batch.positions.push_back(static_cast<int32_t>(i));
          batch.sequence_ids.push_back(there ? 0 : 1);
          batch.loss_mask.push_back(there ? 1.0f : 0.0f);
        }
        batches.push_back(std::move(batch));
      }
    return batches;
  };
  config_.train.micro_batch_size = 2;
  const Evaluation found = evaluated(config_, packed);
  EXPECT_EQ(found.targets, static_cast<double>(data.held_out->packed_size().places));
  EXPECT_LT(found.targets, static_cast<double>(samples * config_.data.seq_length)) << "some rows are padded";
  const Evaluation with_other = evaluated(config_, with_other_padding);
  expect_same(with_other, found);
  expect_same_routers(with_other, found);
  EXPECT_EQ(assignments_of(found),
            static_cast<int64_t>(found.targets) * config_.model.moe.moe_router_topk * config_.model.num_layers);
  config_.train.micro_batch_size = 1;
  expect_same(evaluated(config_, alone), found);
}

TEST_F(EvaluateTest, EveryLayoutHasTheSameResult) {
  std::map<int64_t, Evaluation> ones;  // by sequences in a micro-batch
  for (const int64_t sequences : {1, 2, 4}) {
    config_.train.micro_batch_size = sequences;
    ones[sequences] = evaluated(config_);
  }
  for (const testing::LaidOut& layout : std::initializer_list<testing::LaidOut>{
           {"replicate=2"},
           {"replicate=2,expert=2"},
           {"shard=2", "optim_grads_params"},
           {.mesh = "shard=2,expert=2", .strategy = "optim_grads_params", .reshard_after_forward = false},
           {"context=2"},
           {"context=2,expert=2"},
           {"tensor=2,expert_tensor=1"},
           {"tensor=2,expert_tensor=2"},
           {"pipeline=2"},
           {"pipeline=2", "auto", 2},
           {"replicate=2,context=2,pipeline=2,expert=4"}})
    for (const int64_t sequences : {1, 2, 4}) {
      SCOPED_TRACE(cat(described(layout), ", ", sequences, " sequences in a micro-batch"));
      RunConfig config = laid_out(config_, layout);
      config.train.micro_batch_size = sequences;
      const Evaluation found = evaluated(config);
      expect_same(ones.at(1), found);
      expect_same_routers(ones.at(sequences), found);
    }
}

// Dispatched rows go to each host once and with exact counts, since an evaluation has no fixed capacity.
TEST_F(EvaluateTest, HierarchicalDispatchHasTheSameResult) {
  config_.train.micro_batch_size = 1;
  const Evaluation one = evaluated(config_);
  for (const int64_t of_host : {1, 2}) {
    SCOPED_TRACE(cat("hosts of ", of_host));
    RunConfig config = laid_out(config_, {"replicate=4,expert=4"});
    config.parallel.hierarchical_expert_parallel_size = of_host;
    config.model.moe.moe_exchange_factor = 1.5;
    expect_same(one, evaluated(config));
  }
}

}  // namespace
}  // namespace witan
