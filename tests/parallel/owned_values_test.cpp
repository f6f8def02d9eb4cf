#include "witan/parallel/owned_values.h"

#include "parallel/parallel_support.h"
#include "witan/kernels/optimizer.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::SmallModel;
using testing::ThreadRank;

constexpr int64_t kChunk = kernels::kChunkElements;

Layout owned_layout(int world, int64_t expert_ranks, const char* strategy = "optim") {
  ParallelConfig config;
  config.expert_model_parallel_size = expert_ranks;
  config.data_parallel_sharding_strategy = strategy;
  return {config, world, 8};
}

// Two blocks between an embedding and a head. No owner has all of a matrix of theirs.
std::vector<ParameterSpec> blocks() {
  return {{.name = "embedding", .shape = {2, kChunk}},
          {.name = "first.w", .shape = {8, kChunk}, .unit = 1},
          {.name = "first.experts", .shape = {8, 3, 5}, .expert = true, .unit = 1},
          {.name = "second.w", .shape = {8, kChunk}, .unit = 2},
          {.name = "head", .shape = {8, kChunk}, .unit = 3}};
}

// As owners leave them after an update: elsewhere they are old.
void update(const std::vector<Tensor>& values, const Ownership& ownership, float by) {
  for (const Tensor& value : values) std::ranges::fill(value.span<float>(), -1.0f);
  for (const auto& [parameter, first, elements, pieces] : ownership.owned())
    for (int64_t i = 0; i < elements; ++i)
      parameter->kept_value(first, elements).data<float>()[i] =
          static_cast<float>(parameter->region().global(first + i)) + by;
}

bool is_new(const Parameter& parameter, const Tensor& value, float by) {
  for (int64_t i = 0; i < value.elements(); ++i)
    if (value.data<float>()[i] != static_cast<float>(parameter.region().global(i)) + by) return false;
  return true;
}

// On a stream of their own the next unit comes beside the one that is read.
void expect_to_come_when_read(bool beside) {
  on_ranks(4, [beside](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, owned_layout(4, 2), rank.rank);
    SmallModel model(rank.stream, blocks(), groups);
    const Ownership ownership(model.parameters, groups.layout(), groups.rank());
    std::vector<Tensor> values;  // who holds them is not asked
    for (const Parameter* parameter : model.parameters) values.push_back(parameter->value());
    Stream side(rank.stream.device(), rank.stream.shared_arena(), rank.pool);
    OwnedValues others(rank.stream, ownership, groups);
    if (beside) others.gather_on(&side);
    EXPECT_TRUE(others.gathered());
    for (const float by : {1.0f, 2.0f}) {
      update(values, ownership, by);
      others.updated();
      EXPECT_FALSE(others.gathered());
      // The first block's, and what is before it; an owner of all of a unit has it anyhow.
      EXPECT_TRUE(is_new(*model.parameters[1], model.parameters[1]->value(), by));
      for (const size_t i : {0, 2}) EXPECT_TRUE(is_new(*model.parameters[i], values[i], by)) << i;
      EXPECT_EQ(is_new(*model.parameters[3], values[3], by), beside);
      EXPECT_FALSE(is_new(*model.parameters[4], values[4], by));
      EXPECT_TRUE(is_new(*model.parameters[3], model.parameters[3]->kept_value().reshape({8, kChunk}), by));
      EXPECT_EQ(is_new(*model.parameters[4], values[4], by), beside);
      EXPECT_FALSE(others.gathered()) << "nobody has waited for the head";
      others.gather();
      EXPECT_TRUE(is_new(*model.parameters[4], values[4], by));
      EXPECT_TRUE(others.gathered());
      const auto sent = groups.of(Axis::shard).sent();
      others.gather();
      EXPECT_EQ(groups.of(Axis::shard).sent(), sent) << "they are here";
    }
  });
}

TEST(OwnedValues, ComeWhenTheyAreFirstRead) {
  expect_to_come_when_read(false);
  expect_to_come_when_read(true);
}

// Values that ranks divide are DividedValues' to gather, and whole ones nobody's.
TEST(OwnedValues, AreThoseOfDividedOptimizersAlone) {
  for (const char* strategy : {"no_shard", "optim_grads_params"})
    on_ranks(2, [&](ThreadRank& rank) {
      const Groups groups = make_groups(rank.world, owned_layout(2, 2, strategy), rank.rank);
      SmallModel model(rank.stream, blocks(), groups);
      const Ownership ownership(model.parameters, groups.layout(), groups.rank());
      OwnedValues others(rank.stream, ownership, groups);
      others.updated();
      EXPECT_TRUE(others.gathered());
      for (const Parameter* parameter : model.parameters) EXPECT_FALSE(parameter->value_wanted) << parameter->name();
    });
}

}  // namespace
}  // namespace witan
