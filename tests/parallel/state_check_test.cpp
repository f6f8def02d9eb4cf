#include "witan/parallel/state_check.h"

#include "parallel/parallel_support.h"
#include "support/message_of.h"
#include "witan/model/transformer.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/parallel/sharding/shard_plan.h"

namespace witan {
namespace {

using testing::layout_of;
using testing::small_specs;
using testing::SmallModel;
using testing::ThreadRank;

// The state of a training rank after one update from equal gradients.
struct Trained {
  explicit Trained(ThreadRank& on)
      : rank(on),
        groups(make_groups(on.world, layout_of(4, 2), on.rank)),
        model(on.stream, small_specs(DType::bf16), groups),
        buckets(on.stream, model.parameters, groups, {}),
        optimizer(make_optimizer({}, on.stream, unsharded(model.parameters))),
        check(model.parameters, groups) {
    for (Parameter* parameter : model.parameters) testing::write_summand(*parameter, on.rank);
    buckets.finish_step();
    StepState step(on.stream);
    step.set({1e-2}, 1, 1);
    optimizer->update(on.stream, step);
  }

  ThreadRank& rank;
  Groups groups;
  SmallModel model;
  GradientBuckets buckets;
  std::unique_ptr<Optimizer> optimizer;
  StateCheck check;
};

void check_all(Trained& trained) {
  Stream& stream = trained.rank.stream;
  trained.check.after_init(stream);
  trained.check.after_reduction(stream, unsharded(trained.model.parameters));
  trained.check.after_update(stream, *trained.optimizer);
}

void flip_bit(const Tensor& tensor, int64_t byte) {
  tensor.raw()[byte] ^= std::byte{0x10};
}

// The error of all ranks after `damage` changed the ranks' states.
std::string complaint(const std::function<void(Trained&)>& damage) {
  return test::message_of<CommError>([&] {
    testing::on_ranks(4, [&](ThreadRank& rank) {
      Trained trained(rank);
      damage(trained);
      check_all(trained);
    });
  });
}
// Removes "rank N: ", the rank whose error came first.
std::string without_rank(const std::string& message) {
  EXPECT_EQ(message.rfind("rank ", 0), 0u) << message;
  return message.substr(message.find(": ") + 2);
}

TEST(StateCheck, AcceptsValidStates) {
  testing::on_ranks(4, [](ThreadRank& rank) {
    Trained trained(rank);
    check_all(trained);
  });
}

TEST(StateCheck, NamesTheRankOfAFlippedBit) {
  EXPECT_EQ(
      without_rank(complaint([](Trained& on) {
        if (on.rank.rank == 2) flip_bit(on.model.named("norm").value(), 3);
      })),
      "check_states after init: the value of norm must be the same on all 4 ranks of axis replicate, but differs on "
      "rank(s) 2");
  EXPECT_EQ(without_rank(complaint([](Trained& on) {
              if (on.rank.rank == 3) flip_bit(on.model.named("experts.up").gradient(), 77);
            })),
            "check_states after reduction: the gradient of experts.up must be the same on all 2 ranks of axis "
            "expert_replicate, but differs on rank(s) 3");
  EXPECT_EQ(
      without_rank(complaint([](Trained& on) {
        if (on.rank.rank != 1) return;
        on.optimizer->visit([](const OptimizerTensor& state) {
          if (state.name == "adam.v/head") flip_bit(state.tensor, 5);
        });
      })),
      "check_states after the update: adam.v/head must be the same on all 4 ranks of axis replicate, but differs on "
      "rank(s) 1");
}

TEST(StateCheck, NamesTheRankOfADifferingBuffer) {
  const auto complaint_after = [&](bool update) {
    return without_rank(test::message_of<CommError>([&] {
      testing::on_ranks(4, [&](ThreadRank& rank) {
        const Groups groups = make_groups(rank.world, layout_of(4, 2), rank.rank);
        Buffer load(rank.stream, {.name = "router.load", .shape = {3}, .dtype = DType::i64});
        Buffer bias(rank.stream, {.name = "router.bias", .shape = {3}});
        const StateCheck check({}, groups, {&load, &bias});
        const auto optimizer = make_optimizer({}, rank.stream, {});
        if (update) check.after_init(rank.stream);
        if (rank.rank == 2) flip_bit(bias.value(), 5);
        if (update) return check.after_update(rank.stream, *optimizer);
        check.after_init(rank.stream);
      });
    }));
  };
  const std::string rest =
      ": the buffer router.bias must be the same on all 4 ranks of axis replicate, but differs on rank(s) 2";
  EXPECT_EQ(complaint_after(false), "check_states after init" + rest);
  EXPECT_EQ(complaint_after(true), "check_states after the update" + rest);
}

TEST(StateCheck, FindsEqualExperts) {
  EXPECT_EQ(without_rank(complaint([](Trained& on) {
              Tensor down = on.model.named("experts.down").value();  // [4, 7, 5]: 0 to 3, or 4 to 7
              const size_t bytes = 7 * 5 * sizeof(bf16);
              if (on.groups.of(Axis::expert).rank() == 0)
                std::ranges::fill_n(down.raw() + bytes, bytes, std::byte{1});
              else
                std::ranges::fill_n(down.raw() + 2 * bytes, bytes, std::byte{1});
            })),
            "check_states after init: experts 1 and 6 of experts.down are equal; each must be initialized with "
            "different random numbers, or they learn the same");
}

// Two equal experts may be copies with which a run began.
TEST(StateCheck, FindsAllExpertsEqualAfterAnUpdate) {
  const auto check_with = [](int64_t equal) {  // of the four experts that each rank holds
    testing::on_ranks(4, [&](ThreadRank& rank) {
      Trained trained(rank);
      const Tensor& down = trained.model.named("experts.down").value();  // [4, 7, 5]
      std::ranges::fill_n(down.raw(), equal * 7 * 5 * static_cast<int64_t>(sizeof(bf16)), std::byte{1});
      trained.check.experts_after_update(rank.stream);
    });
  };
  EXPECT_NO_THROW(check_with(3));
  EXPECT_EQ(without_rank(test::message_of<CommError>([&] { check_with(4); })),
            "check_states after the update: all 8 experts of experts.down are equal; they learn the same, and must "
            "begin with different values");
}

TEST(StateCheck, FindsExpertsInTheWrongPlace) {
  testing::Rank rank;
  const Groups groups = make_meta_groups(layout_of(2, 2), 1);
  Parameter misplaced(rank.stream, {.name = "experts", .shape = {8, 2, 2}, .expert = true}, {{0, 16}, {4, 2, 2}}, 1);
  const StateCheck check({&misplaced}, groups);
  EXPECT_EQ(test::message_of<CommError>([&] { check.after_init(rank.stream); }),
            "check_states after init: rank 1 holds elements [0, 16) of experts, but the layout assigns it [16, 32)");
}

// The model selects its experts itself; the layout must agree on every rank.
TEST(StateCheck, TransformersMatchTheLayout) {
  ModelConfig config;
  config.vocab_size = 100;
  config.hidden_size = 64;
  for (const int64_t expert_ranks : {1, 2, 8})
    for (int index = 0; index < 8; ++index) {
      testing::Rank rank(1);
      Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
      const Groups groups = make_meta_groups(layout_of(8, expert_ranks, config.moe.num_experts), index);
      Transformer model(meta, config, 1, groups.of(Axis::expert));
      StateCheck(model.parameters(), groups).after_init(meta);
      EXPECT_EQ(groups.of(Axis::expert).sent().empty(), expert_ranks == 1);
    }
}

TEST(StateCheck, CountsOnMeta) {
  testing::Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const Groups groups = make_meta_groups(layout_of(8, 2), 5);
  SmallModel model(meta, small_specs(), groups);
  StateCheck(model.parameters, groups).after_init(meta);
  EXPECT_EQ(groups.of(Axis::expert).sent().at("all_gather"), 2 * 4 * 8);  // two parameters, four experts held
}

// A bfloat16 value is half of what is updated: the remainders to float32 must agree too.
TEST(StateCheck, NamesTheRankOfADifferingRemainder) {
  EXPECT_EQ(without_rank(complaint([](Trained& on) {
              if (on.rank.rank != 3) return;
              on.optimizer->visit([](const OptimizerTensor& state) {
                if (state.name != "master/norm") return;
                ASSERT_TRUE(state.remainder.defined());
                flip_bit(state.remainder, 4);
              });
            })),
            "check_states after the update: master/norm must be the same on all 4 ranks of axis replicate, but differs "
            "on rank(s) 3");
}

// The ends of a pipeline both hold a tied embedding, though no replica axis connects them.
TEST(StateCheck, FindsDifferingCopiesOfATiedEmbedding) {
  ParallelConfig config;
  config.pipeline_model_parallel_size = 2;
  config.expert_model_parallel_size = 1;
  const Layout layout(config, 2, 0);
  const auto complaint_after = [&](bool update) {
    return without_rank(test::message_of<CommError>([&] {
      testing::on_ranks(2, [&](ThreadRank& rank) {
        const Groups groups = make_groups(rank.world, layout, rank.rank);
        const ParameterSpec tied{.name = "embedding", .shape = {30, 7}, .tied = true, .copy = rank.rank == 1};
        SmallModel model(rank.stream, {tied}, groups);
        const StateCheck check(model.parameters, groups);
        const auto optimizer = make_optimizer({}, rank.stream, unsharded(model.parameters));
        if (update) check.after_init(rank.stream);
        if (rank.rank == 1) flip_bit(model.named("embedding").value(), 11);
        if (update) return check.after_update(rank.stream, *optimizer);
        check.after_init(rank.stream);
      });
    }));
  };
  const std::string rest = ": embedding must be the same on the first and the last stage of the pipeline, but differs";
  EXPECT_EQ(complaint_after(false), "check_states after init" + rest);
  EXPECT_EQ(complaint_after(true), "check_states after the update" + rest);
}

}  // namespace
}  // namespace witan
