#include "witan/parallel/sharding/grad_buckets.h"

#include <map>

#include "parallel/parallel_support.h"

namespace witan {
namespace {

using testing::layout_of;
using testing::on_ranks;
using testing::Rank;
using testing::small_specs;
using testing::SmallModel;
using testing::ThreadRank;
using testing::values;
using testing::write_summand;

TEST(GradientBuckets, OneBufferServesManyParameters) {
  Rank rank;
  const Groups groups = make_meta_groups(layout_of(1, 1), 0);
  SmallModel model(rank.stream, small_specs(DType::bf16), groups);
  {
    const GradientBuckets buckets(rank.stream, model.parameters, groups, {.bucket_elements = 250});
    std::vector<std::string> order;
    for (const auto& bucket : buckets.buckets()) {
      std::string names;
      int64_t begin = 0;
      for (Parameter* parameter : bucket.parameters) {
        names += " " + parameter->name();
        EXPECT_EQ(parameter->gradient().raw(), bucket.buffer.narrow(0, begin, 0).raw());
        EXPECT_EQ(parameter->gradient().dtype(), DType::f32);
        begin += parameter->elements();
      }
      EXPECT_EQ(begin, bucket.buffer.elements());
      order.push_back(names);
    }
    // 210 and 7 elements are less than 250, so that the embedding joins; experts hold 280 each.
    EXPECT_EQ(order, (std::vector<std::string>{" experts.down", " experts.up", " embedding norm head"}));
    EXPECT_TRUE(model.parameters[0]->gradient_ready);
  }
  EXPECT_FALSE(model.parameters[0]->gradient_ready);
}

// The sum of every parameter's summands according to the layout.
void expect_sums(const Groups& groups, SmallModel& model, int micro_batches) {
  for (Parameter* parameter : model.parameters) {
    const Axis axis = parameter->spec().expert ? Axis::expert_replicate : Axis::replicate;
    std::vector<double> expected(static_cast<size_t>(parameter->elements()));
    for (const int rank : groups.layout().mesh().ranks(groups.rank(), axis))
      for (int64_t i = 0; i < parameter->elements(); ++i)
        expected[static_cast<size_t>(i)] +=
            micro_batches * testing::summand(parameter->name(), rank, parameter->region().global(i));
    EXPECT_TRUE(testing::close(values(parameter->gradient()), expected, 1e-13, 1e-13)) << parameter->name();
  }
}

TEST(GradientBuckets, SumOverExactlyTheAxesOfPartialGradients) {
  for (const int64_t expert_ranks : {1, 2, 4})
    on_ranks(4, [&](ThreadRank& rank) {
      const Groups groups = make_groups(rank.world, layout_of(4, expert_ranks), rank.rank);
      SmallModel model(rank.stream, small_specs(DType::f64), groups);
      GradientBuckets buckets(rank.stream, model.parameters, groups,
                              {.dtype = DType::f64, .micro_batches = 2, .bucket_elements = 250});
      for (int step = 0; step < 2; ++step) {
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
          buckets.begin_micro_batch(micro_batch);
          for (size_t i = model.parameters.size(); i-- > 0;) {
            write_summand(*model.parameters[i], rank.rank);
            model.parameters[i]->on_gradient_ready();
          }
        }
        buckets.finish_step();
        expect_sums(groups, model, 2);
      }
    });
}

// Gradients may become ready in any order or never: the order of reductions stays the same, so that ranks may even
// differ.
TEST(GradientBuckets, DoNotDependOnTheOrderOfReadiness) {
  on_ranks(4, [&](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout_of(4, 2), rank.rank);
    SmallModel model(rank.stream, small_specs(DType::f64), groups);
    GradientBuckets buckets(rank.stream, model.parameters, groups, {.dtype = DType::f64, .bucket_elements = 1});
    buckets.begin_micro_batch(0);
    for (Parameter* parameter : model.parameters) write_summand(*parameter, rank.rank);
    if (rank.rank == 1)
      for (Parameter* parameter : model.parameters) parameter->on_gradient_ready();
    if (rank.rank == 2) model.named("norm").on_gradient_ready();
    buckets.finish_step();
    expect_sums(groups, model, 1);
  });
}

TEST(GradientBuckets, ReduceOnlyDuringTheLastBackward) {
  on_ranks(2, [&](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout_of(2, 1), rank.rank);
    SmallModel model(rank.stream, small_specs(), groups);
    GradientBuckets buckets(rank.stream, model.parameters, groups, {.micro_batches = 2, .bucket_elements = 1});
    const auto sent = [&] { return groups.world().sent().count("all_reduce"); };
    Parameter& head = model.named("head");
    write_summand(head, rank.rank);
    head.on_gradient_ready();
    EXPECT_EQ(sent(), 0u) << "more micro-batches follow";
    buckets.begin_micro_batch(1);
    head.on_gradient_ready();
    EXPECT_EQ(sent(), 1u) << "ready: no need to wait for the others";
    EXPECT_EQ(groups.world().sent().at("all_reduce"), 2 * 210 * 4 * 0.5);
    buckets.finish_step();
    EXPECT_EQ(groups.world().sent().at("all_reduce"), 2 * (210 + 7 + 210) * 4 * 0.5);
  });
}

TEST(GradientBuckets, UnwrittenGradientsAreZero) {
  Rank rank;
  const Groups groups = make_meta_groups(layout_of(1, 1), 0);
  SmallModel model(rank.stream, small_specs(), groups);
  GradientBuckets buckets(rank.stream, model.parameters, groups, {});
  for (const auto& bucket : buckets.buckets()) std::ranges::fill(bucket.buffer.span<float>(), NAN);
  buckets.begin_micro_batch(0);
  write_summand(model.named("head"), 0);
  buckets.finish_step();
  for (Parameter* parameter : model.parameters) {
    const auto found = values(parameter->gradient());
    EXPECT_EQ(found == std::vector<double>(found.size(), 0.0), parameter->name() != "head") << parameter->name();
    EXPECT_TRUE(parameter->gradient_written);
  }
}

// Block sums are kept only for gradients that are complete once a GEMM has written them, and that GEMMs can sum as they
// write.
TEST(GradientBuckets, KeepBlockSumsIfNoOtherRankHasSummands) {
  struct Kept {
    int world;
    int64_t expert_ranks;
    GradientOptions options;
    bool expected;
  };
  const DType bf16 = DType::bf16;
  for (const Kept& c : std::vector<Kept>{{1, 1, {.norm_fusion = true}, true},
                                         {1, 1, {}, false},
                                         {2, 2, {.norm_fusion = true}, true},
                                         {2, 1, {.norm_fusion = true}, false},
                                         {4, 2, {.norm_fusion = true}, false},
                                         {1, 1, {.micro_batches = 2, .norm_fusion = true}, false},
                                         {1, 1, {.dtype = bf16, .micro_batches = 2, .norm_fusion = true}, true},
                                         {1, 1, {.summation = Summation::tree, .norm_fusion = true}, false}})
    on_ranks(c.world, [&](ThreadRank& rank) {
      const Groups groups = make_groups(rank.world, layout_of(c.world, c.expert_ranks), rank.rank);
      SmallModel model(rank.stream, small_specs(), groups);
      Parameter& up = model.named("experts.up");
      up.can_sum_blocks = true;
      {
        const GradientBuckets buckets(rank.stream, model.parameters, groups, c.options);
        EXPECT_EQ(up.gradient_block_sums().defined(), c.expected);
        EXPECT_FALSE(model.named("experts.down").gradient_block_sums().defined());
      }
      EXPECT_FALSE(up.gradient_block_sums().defined()) << "freed with the gradients";
    });
}

TEST(GradientBuckets, BlockSumsOfUnwrittenGradientsAreZero) {
  Rank rank;
  const Groups groups = make_meta_groups(layout_of(1, 1), 0);
  SmallModel model(rank.stream, small_specs(), groups);
  Parameter& up = model.named("experts.up");
  up.can_sum_blocks = true;
  GradientBuckets buckets(rank.stream, model.parameters, groups, {.norm_fusion = true});
  std::ranges::fill(up.gradient_block_sums().span<double>(), NAN);
  buckets.begin_micro_batch(0);
  buckets.finish_step();
  std::vector<double> of_zeros;
  for (int expert = 0; expert < 8; ++expert) of_zeros.insert(of_zeros.end(), {0, 5 * 7});
  EXPECT_EQ(values(up.gradient_block_sums()), of_zeros);
}

// The summand of micro-batch `index` of the global batch for element i of a parameter's global tensor.
float found(const Parameter& parameter, int64_t index, int64_t i) {
  return static_cast<float>(testing::summand(parameter.name(), static_cast<int>(index), i));
}

float tree(const Parameter& parameter, int64_t first, int64_t count, int64_t i) {
  if (count == 1) return found(parameter, first, i);
  int64_t half = 1;
  while (2 * half < count) half *= 2;
  return tree(parameter, first, half, i) + tree(parameter, first + half, count - half, i);
}

// Writes one micro-batch's summands into the separate parts of the gradient: part p of an expert belongs to the same
// micro-batch of the p-th rank that shares the experts.
void write_found(Parameter& parameter, int64_t index, int64_t micro_batches, int first_source) {
  for (int64_t part = 0; part < parameter.gradient_parts(); ++part) {
    const int64_t of = parameter.spec().expert ? (first_source + part) * micro_batches + index : index;
    for (int64_t i = 0; i < parameter.elements(); ++i)
      parameter.gradient_part(part).data<float>()[i] = found(parameter, of, parameter.region().global(i));
  }
  parameter.gradient_written = true;
}

// Every layout forms the sums of one tree over the micro-batches of the global batch.
void expect_tree(int world, int64_t expert_ranks, int64_t micro_batches) {
  SCOPED_TRACE(cat(world, " ranks, experts over ", expert_ranks, ", ", micro_batches, " micro-batches each"));
  on_ranks(world, [&](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout_of(world, expert_ranks), rank.rank);
    SmallModel model(rank.stream, small_specs(), groups);
    GradientBuckets buckets(rank.stream, model.parameters, groups,
                            {.summation = Summation::tree, .micro_batches = micro_batches, .bucket_elements = 250});
    const int first_source = rank.rank - groups.of(Axis::expert).rank();
    for (int step = 0; step < 2; ++step) {
      for (int64_t index = 0; index < micro_batches; ++index) {
        buckets.begin_micro_batch(index);
        for (Parameter* parameter : model.parameters) {
          if (parameter->spec().expert) {
            write_found(*parameter, index, micro_batches, first_source);
          } else {
            write_found(*parameter, rank.rank * micro_batches + index, micro_batches, 0);
          }
          if (parameter->name() != "norm") parameter->on_gradient_ready();  // "norm" is never announced
        }
      }
      buckets.finish_step();
      for (Parameter* parameter : model.parameters) {
        ASSERT_EQ(parameter->gradient_parts(), 1);
        for (int64_t i = 0; i < parameter->elements(); ++i)
          ASSERT_EQ(parameter->gradient().data<float>()[i],
                    tree(*parameter, 0, world * micro_batches, parameter->region().global(i)))
              << parameter->name() << " " << i;
      }
    }
  });
}

TEST(GradientBuckets, SumInOneTreeInEveryTestedLayout) {
  for (const int64_t micro_batches : {1, 2, 3, 5, 6, 7, 8}) expect_tree(1, 1, micro_batches);
  for (const int world : {2, 4, 8})
    for (int64_t expert_ranks = 1; expert_ranks <= world; expert_ranks *= 2)
      for (const int64_t micro_batches : {1, 4}) expect_tree(world, expert_ranks, micro_batches);
  expect_tree(6, 2, 2);
}

TEST(GradientBuckets, UnwrittenGradientsAreZeroInEveryPart) {
  on_ranks(4, [&](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout_of(4, 4), rank.rank);
    SmallModel model(rank.stream, small_specs(), groups);
    GradientBuckets buckets(rank.stream, model.parameters, groups, {.summation = Summation::tree, .micro_batches = 2});
    for (const auto& bucket : buckets.buckets()) std::ranges::fill(bucket.levels.span<float>(), NAN);
    for (int64_t i = 0; i < 2; ++i) buckets.begin_micro_batch(i);
    buckets.finish_step();
    for (Parameter* parameter : model.parameters) {
      const auto found = values(parameter->gradient());
      EXPECT_EQ(found, std::vector<double>(found.size(), 0.0)) << parameter->name();
    }
  });
}

TEST(GradientBuckets, PlansAWorldOnMeta) {
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const Groups groups = make_meta_groups(layout_of(1024, 8), 77);
  SmallModel model(meta, small_specs(), groups);
  GradientBuckets buckets(meta, model.parameters, groups, {});
  buckets.begin_micro_batch(0);
  buckets.finish_step();
  EXPECT_EQ(groups.world().sent().at("all_reduce"), 2.0 * 427 * 4 * 1023 / 1024);
  EXPECT_EQ(groups.of(Axis::expert_replicate).sent().at("all_reduce"), 2.0 * 70 * 4 * 127 / 128);
}

}  // namespace
}  // namespace witan
