#include "witan/parallel/divided_values.h"

#include "parallel/parallel_support.h"
#include "witan/model/transformer.h"
#include "witan/parallel/gradients.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::ThreadRank;
using testing::values;

Layout divided_layout(int world, int64_t expert_ranks, const char* strategy) {
  ParallelConfig config;
  config.expert_model_parallel_size = expert_ranks;
  config.data_parallel_sharding_strategy = strategy;
  return {config, world, 8};
}

// Blocks with experts whose router is wider than the rest.
ModelConfig small_model() {
  ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 32;
  config.vocab_size = 6007;
  config.mlp.ffn_hidden_size = 24;
  config.dtype = "bfloat16";
  return config;
}

// Every value of a whole model, and those of one whose ranks hold their parts alone, gathered when they are asked for.
TEST(DividedValues, AreGatheredWhenAKernelAsks) {
  on_ranks(4, [](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, divided_layout(4, 2, "optim_grads_params"), rank.rank);
    const ModelConfig config = small_model();
    const Transformer whole(rank.stream, config, 7, groups.of(Axis::expert));
    Transformer model(rank.stream, config, 7, groups.model_axes({}));
    DividedValues divided(rank.stream, model, groups, {.seed = 7});
    const auto parameters = model.parameters();
    int64_t kept = 0, all = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = *parameters[i];
      kept += parameter.kept_value().elements();
      all += parameter.elements();
      EXPECT_EQ(values(parameter.value()), values(whole.parameters()[i]->value())) << parameter.name();
    }
    EXPECT_LT(kept, all * 3 / 4);
    divided.release();
    EXPECT_EQ(rank.stream.arena().live(MemoryTag::communication), 0);
  });
}

TEST(DividedValues, AreThereWhileTheirBlockIs) {
  on_ranks(2, [](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, divided_layout(2, 1, "optim_grads_params"), rank.rank);
    Transformer model(rank.stream, small_model(), 7, groups.model_axes({}));
    std::vector<Module*> blocks;
    model.visit([&](Module& module) {
      if (module.path().starts_with("layers.") && module.path().size() == 8) blocks.push_back(&module);
    });
    ASSERT_EQ(blocks.size(), 3u);
    const auto gathered = [&] { return rank.stream.arena().live(MemoryTag::communication); };
    for (const bool reshard : {true, false}) {
      DividedValues divided(rank.stream, model, groups, {.reshard_after_forward = reshard, .seed = 7});
      model.hooks.before_forward();
      std::vector<int64_t> live;
      for (Module* block : blocks) {
        block->hooks.before_forward();
        live.push_back(gathered());
        block->hooks.after_forward();
      }
      EXPECT_EQ(live[1], (reshard ? 1 : 2) * live[0]);
      EXPECT_EQ(gathered(), (reshard ? 1 : 3) * live[0]);  // the last one stays: the backward begins there
      model.hooks.before_backward();
      for (size_t i = 3; i-- > 0;) {
        blocks[i]->hooks.before_backward();
        EXPECT_EQ(gathered(), (reshard ? 1 : 3) * live[0]);
        blocks[i]->hooks.after_backward();
      }
      EXPECT_EQ(gathered(), (reshard ? 0 : 3) * live[0]);  // until all micro-batches of a step are done
      divided.release();
      EXPECT_EQ(gathered(), 0);
    }
  });
}

// As an evaluation's: whatever was gathered before them, and by the pass before.
TEST(DividedValues, PassesWithoutABackwardBeginAlike) {
  on_ranks(2, [](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, divided_layout(2, 1, "optim_grads_params"), rank.rank);
    Transformer model(rank.stream, small_model(), 7, groups.model_axes({}));
    const auto gathered = [&] { return rank.stream.arena().live(MemoryTag::communication); };
    const auto read = [&](size_t parameter) { model.parameters()[parameter]->value(); };
    const size_t last = model.parameters().size() - 1;
    for (const bool reshard : {true, false}) {
      DividedValues divided(rank.stream, model, groups, {.reshard_after_forward = reshard, .seed = 7});
      for (size_t i = 0; i <= last; ++i) read(i);
      const int64_t begun = reshard ? 0 : gathered();
      EXPECT_GT(gathered(), 0);
      for (const bool some_before : {true, false}) {
        divided.release();
        if (some_before) read(last);
        divided.begin_passes();
        for (int pass = 0; pass < 2; ++pass) {
          EXPECT_EQ(gathered(), begun) << "pass " << pass;
          read(0);
          read(last);
          divided.end_pass();
        }
        EXPECT_EQ(gathered(), begun);
      }
      divided.release();
      EXPECT_EQ(gathered(), 0);
    }
  });
}

// Every micro-batch is summed over ranks into the part that a rank keeps; between them there is nothing else.
TEST(DividedGradients, AreSummedInParts) {
  for (const char* strategy : {"no_shard", "optim_grads"})
    for (const Summation summation : {Summation::in_place, Summation::tree})
      on_ranks(2, [&](ThreadRank& rank) {
        const Groups groups = make_groups(rank.world, divided_layout(2, 1, strategy), rank.rank);
        testing::SmallModel model(rank.stream, testing::small_specs(), groups);
        GradientBuckets buckets(rank.stream, model.parameters, groups, {.summation = summation, .micro_batches = 2});
        const bool divided = groups.layout().divides_gradients(false);
        for (int64_t index = 0; index < 2; ++index) {
          buckets.begin_micro_batch(index);
          for (Parameter* parameter : model.parameters) {
            parameter->gradient();  // as a writer does: it is there before it is asked whether it was written
            testing::write_summand(*parameter, 2 * rank.rank + static_cast<int>(index));
            parameter->on_gradient_ready();
          }
          if (divided && summation == Summation::in_place) {
            EXPECT_EQ(rank.stream.arena().live(MemoryTag::communication), 0);
          }
        }
        buckets.finish_step();
        EXPECT_EQ(rank.stream.arena().live(MemoryTag::communication), 0);
        const Ownership ownership(model.parameters, groups.layout(), rank.rank);
        for (const auto& [parameter, first, elements, pieces] : ownership.owned()) {
          const auto sums = values(parameter->kept_gradient(first, elements));
          for (int64_t i = 0; i < elements; ++i) {
            double sum = 0;
            for (int summand = 0; summand < 4; ++summand)
              sum += testing::summand(parameter->name(), summand, parameter->region().global(first + i));
            ASSERT_NEAR(sums[static_cast<size_t>(i)], sum, 1e-5) << parameter->name();
          }
        }
      });
}

TEST(PlanUnits, AreBlocksAndWhatIsAroundThem) {
  on_ranks(1, [](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, divided_layout(1, 1, "no_shard"), rank.rank);
    const Transformer model(rank.stream, small_model(), 7, groups.of(Axis::expert));
    const auto parameters = model.parameters();
    std::vector<std::string> begins;
    for (const auto& unit : plan_units(parameters)) begins.push_back(parameters[unit.front()]->name());
    EXPECT_EQ(begins, (std::vector<std::string>{"embedding.weight", "layers.0.attention_norm.weight",
                                                "layers.1.attention_norm.weight", "layers.2.attention_norm.weight",
                                                "final_norm.weight"}));
  });
}

}  // namespace
}  // namespace witan
