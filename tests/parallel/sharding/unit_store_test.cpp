#include "witan/parallel/sharding/unit_store.h"

#include "parallel/parallel_support.h"
#include "support/message_of.h"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/model/transformer.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::SmallModel;
using testing::ThreadRank;
using testing::values;
using Use = UnitAccess::Use;

Layout layout_with(int world, int64_t expert_ranks, const char* strategy) {
  ParallelConfig config;
  config.expert_model_parallel_size = expert_ranks;
  config.data_parallel_sharding_strategy = strategy;
  return {config, world, 8};
}

// Blocks with experts whose router has a wider dtype than the rest.
ModelConfig small_model() {
  ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 32;
  config.vocab_size = 6007;
  config.mlp.ffn_hidden_size = 24;
  config.dtype = "bfloat16";
  return config;
}

// A transformer whose parameters are sharded.
struct Sharded {
  Sharded(ThreadRank& rank, int64_t expert_ranks, bool reshard = true, const ModelConfig& config = small_model())
      : groups(make_groups(rank.world, layout_with(rank.size(), expert_ranks, "optim_grads_params"), rank.rank)),
        model(rank.stream, config, 7, groups.model_axes({})),
        shard_plan(model.parameters(), groups.layout(), rank.rank),
        store(rank.stream, model.units(), shard_plan, groups, {.reshard_after_forward = reshard, .seed = 7}) {}

  Groups groups;
  Transformer model;
  ShardPlan shard_plan;
  UnitStore store;
};

// Compares every value of a whole model with those of a sharded one, gathered when they are acquired.
TEST(UnitStore, GathersAcquiredUnits) {
  on_ranks(4, [](ThreadRank& rank) {
    Sharded sharded(rank, 2);
    const Transformer whole(rank.stream, small_model(), 7, sharded.groups.of(Axis::expert));
    const auto parameters = sharded.model.parameters();
    int64_t held = 0, all = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = *parameters[i];
      held += parameter.value_shard().elements();
      all += parameter.elements();
      const UnitReading reading(&sharded.store, parameter.spec().unit);
      EXPECT_EQ(values(parameter.value()), values(whole.parameters()[i]->value())) << parameter.name();
    }
    EXPECT_LT(held, all * 3 / 4);
    EXPECT_EQ(rank.stream.arena().live(MemoryTag::communication), 0);
  });
}

TEST(UnitStore, ReadsNeedAGuard) {
  for (const char* strategy : {"no_shard", "optim", "optim_grads_params"})
    on_ranks(2, [&](ThreadRank& rank) {
      const Groups groups = make_groups(rank.world, layout_with(2, 1, strategy), rank.rank);
      Transformer model(rank.stream, small_model(), 7, groups.model_axes({}));
      Parameter& norm = *model.parameters()[1];
      {
        const ShardPlan shard_plan(model.parameters(), groups.layout(), rank.rank);
        UnitStore store(rank.stream, model.units(), shard_plan, groups, {});
        const auto sent = groups.over(groups.layout().sharding_axes(false)).sent();
        EXPECT_EQ(test::message_of<Error>([&] { norm.value(); }),
                  "layers.0.attention_norm.weight is read while its unit, layers.0, is not acquired: a UnitGuard must "
                  "stand where the unit is used");
        EXPECT_EQ(groups.over(groups.layout().sharding_axes(false)).sent(), sent) << "reading communicates";
        {
          const UnitReading one(&store, 1), again(&store, 1);
          EXPECT_EQ(norm.value().elements(), 32);
        }
        EXPECT_THROW(norm.value(), Error);
      }
      if (!groups.layout().shards_values()) {
        EXPECT_EQ(norm.value().elements(), 32) << "no longer gathered";
      }
    });
}

TEST(UnitStore, HoldsBlocksWhileInUse) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto gathered = [&] { return rank.stream.arena().live(MemoryTag::communication); };
    for (const bool reshard : {true, false}) {
      Sharded sharded(rank, 1, reshard);
      UnitStore& store = sharded.store;
      store.begin_forward();
      std::vector<int64_t> live;
      for (const int block : {1, 2, 3}) {
        store.acquire(block, Use::forward);
        live.push_back(gathered());
        store.release(block, Use::forward);
      }
      EXPECT_EQ(live[1], (reshard ? 1 : 2) * live[0]);
      EXPECT_EQ(gathered(), (reshard ? 1 : 3) * live[0]);  // the last one stays, since the backward begins there
      store.begin_backward();
      for (const int block : {3, 2, 1}) {
        store.acquire(block, Use::backward);
        EXPECT_EQ(gathered(), (reshard ? 1 : 3) * live[0]);
        store.acquire(block, Use::forward);  // as recomputation does
        store.release(block, Use::forward);
        EXPECT_EQ(gathered(), (reshard ? 1 : 3) * live[0]);
        store.release(block, Use::backward);
      }
      EXPECT_EQ(gathered(), (reshard ? 0 : 3) * live[0]);  // until all micro-batches of a step are done
      store.end_backward();
      store.give_back();
      EXPECT_EQ(gathered(), 0);
    }
  });
}

// A GPU may still decode what the host has queued on the side stream, so that the gathered codes are not free before
// the main stream waits for it.
TEST(UnitStore, CodesInFlightKeepTheirMemory) {
  ModelConfig config = small_model();
  config.mlp.ffn_hidden_size = 32;
  config.lora_rank = 2;
  config.frozen_format = "mxfp4";
  on_ranks(2, [&](ThreadRank& rank) {
    const auto gathered_with = [&](bool prefetch) {
      Sharded sharded(rank, 1, true, config);
      Stream side(rank.stream.device(), rank.stream.shared_arena(), rank.pool);
      if (prefetch) sharded.store.gather_on(&side, true);
      sharded.store.begin_forward();
      sharded.store.acquire(1, Use::forward);
      const int64_t live = rank.stream.arena().live(MemoryTag::communication);
      sharded.store.release(1, Use::forward);
      sharded.store.give_back();
      EXPECT_EQ(rank.stream.arena().live(MemoryTag::communication), 0);
      return live;
    };
    EXPECT_GT(gathered_with(true), 2 * gathered_with(false)) << "the next block, and its codes";
  });
}

// Passes of an evaluation, whatever was gathered before them or by the previous pass.
TEST(UnitStore, ForwardOnlyPassesBeginAlike) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto gathered = [&] { return rank.stream.arena().live(MemoryTag::communication); };
    for (const bool reshard : {true, false}) {
      Sharded sharded(rank, 1, reshard);
      UnitStore& store = sharded.store;
      const auto use = [&](int unit) {
        store.acquire(unit, Use::forward);
        store.release(unit, Use::forward);
      };
      for (int unit = 0; unit <= 4; ++unit) use(unit);
      EXPECT_GT(gathered(), 0);
      store.give_back();
      for (const bool some_before : {true, false}) {
        if (some_before) use(4);
        store.begin_passes();
        const int64_t begun = gathered();
        EXPECT_EQ(begun > 0, !reshard);
        for (int pass = 0; pass < 2; ++pass) {
          EXPECT_EQ(gathered(), begun) << "pass " << pass;
          use(0);
          use(4);
          store.end_pass();
        }
        EXPECT_EQ(gathered(), begun);
        store.give_back();
        EXPECT_EQ(gathered(), 0);
      }
    }
  });
}

constexpr int64_t kChunk = kernels::kChunkElements;

// Two blocks between an embedding and a head; no rank updates all of a matrix.
std::vector<ParameterSpec> blocks() {
  return {{.name = "embedding", .shape = {2, kChunk}},
          {.name = "first.w", .shape = {8, kChunk}, .unit = 1},
          {.name = "first.experts", .shape = {8, 3, 5}, .expert = true, .unit = 1},
          {.name = "second.w", .shape = {8, kChunk}, .unit = 2},
          {.name = "head", .shape = {8, kChunk}, .unit = 3}};
}

// Values after each rank has updated its own shards: the others are out of date.
void update(const std::vector<Tensor>& values, const ShardPlan& shard_plan, float by) {
  for (const Tensor& value : values) std::ranges::fill(value.span<float>(), -1.0f);
  for (const auto& [parameter, first, elements, pieces] : shard_plan.local_shards())
    for (int64_t i = 0; i < elements; ++i)
      parameter->value_shard(first, elements).data<float>()[i] =
          static_cast<float>(parameter->region().global(first + i)) + by;
}

bool is_new(const Parameter& parameter, const Tensor& value, float by) {
  for (int64_t i = 0; i < value.elements(); ++i)
    if (value.data<float>()[i] != static_cast<float>(parameter.region().global(i)) + by) return false;
  return true;
}

// With a side stream the next unit is gathered while the current one is used.
void expect_to_come_when_acquired(bool beside) {
  on_ranks(4, [beside](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout_with(4, 2, "optim"), rank.rank);
    SmallModel model(rank.stream, blocks(), groups);
    const ShardPlan shard_plan(model.parameters, groups.layout(), groups.rank());
    std::vector<Tensor> values;
    for (const Parameter* parameter : model.parameters) values.push_back(parameter->value());
    Stream side(rank.stream.device(), rank.stream.shared_arena(), rank.pool);
    UnitStore store(rank.stream, model.units(), shard_plan, groups, {});
    store.gather_on(&side, beside);
    EXPECT_TRUE(store.gathered());
    for (const float by : {1.0f, 2.0f}) {
      update(values, shard_plan, by);
      store.publish();
      EXPECT_FALSE(store.gathered());
      {
        // The first block's unit and those before it, except on ranks that update all of a unit.
        const UnitReading first(&store, 1);
        EXPECT_TRUE(is_new(*model.parameters[1], model.parameters[1]->value(), by));
        for (const size_t i : {0, 2}) EXPECT_TRUE(is_new(*model.parameters[i], values[i], by)) << i;
        EXPECT_EQ(is_new(*model.parameters[3], values[3], by), beside);
        EXPECT_FALSE(is_new(*model.parameters[4], values[4], by));
      }
      {
        const UnitReading second(&store, 2);
        EXPECT_TRUE(is_new(*model.parameters[3], model.parameters[3]->value(), by));
        EXPECT_EQ(is_new(*model.parameters[4], values[4], by), beside);
      }
      EXPECT_FALSE(store.gathered()) << "nothing has waited for the head";
      store.gather();
      EXPECT_TRUE(is_new(*model.parameters[4], values[4], by));
      EXPECT_TRUE(store.gathered());
      const auto sent = groups.of(Axis::shard).sent();
      store.gather();
      EXPECT_EQ(groups.of(Axis::shard).sent(), sent) << "already gathered";
    }
  });
}

TEST(UnitStore, GathersPublishedValuesOnFirstAcquire) {
  expect_to_come_when_acquired(false);
  expect_to_come_when_acquired(true);
}

// Sharded values are gathered whenever they are used, unsharded ones never.
TEST(UnitStore, PublishesOnlyShardedUpdatesOfWholeValues) {
  for (const char* strategy : {"no_shard", "optim_grads_params"})
    on_ranks(2, [&](ThreadRank& rank) {
      const Groups groups = make_groups(rank.world, layout_with(2, 2, strategy), rank.rank);
      SmallModel model(rank.stream, blocks(), groups);
      const ShardPlan shard_plan(model.parameters, groups.layout(), groups.rank());
      UnitStore store(rank.stream, model.units(), shard_plan, groups, {});
      store.publish();
      EXPECT_TRUE(store.gathered());
    });
}

TEST(PlanUnits, MatchTheModel) {
  on_ranks(1, [](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout_with(1, 1, "no_shard"), rank.rank);
    Transformer model(rank.stream, small_model(), 7, groups.of(Axis::expert));
    const auto parameters = model.parameters();
    std::vector<std::vector<std::string>> planned, declared;
    for (const auto& unit : plan_units(parameters)) {
      planned.emplace_back();
      for (const size_t i : unit) planned.back().push_back(parameters[i]->name());
    }
    for (const Unit& unit : model.units()) {
      declared.emplace_back();
      for (const Parameter* parameter : unit.parameters) declared.back().push_back(parameter->name());
    }
    EXPECT_EQ(planned, declared);
    EXPECT_EQ(planned.size(), 5U);
  });
}

}  // namespace
}  // namespace witan
