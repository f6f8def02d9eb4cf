#include "witan/planner/memory/meta_rank.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/base/files/file.h"
#include "witan/planner/plan.h"
#include "witan/train/trace/times.h"

namespace witan {
namespace {

using testing::LaidOut;

constexpr int64_t kLevel = 2;  // level 0 logs no times per interval

// Bytes that one of two ranks sends for logging.
double logged(int64_t train_iters) {
  RunConfig config = testing::small_config();
  config.parallel = {2, 1, 1};
  config.log.log_format = "megatron";
  config.log.timing_log_level = kLevel;
  config.train.train_iters = train_iters;
  config.train.log_interval = 10;
  MetaRank meta(resolve(config, {}), layout_of(config), 0);
  meta.reset_costs();
  meta.log();
  double bytes = 0;
  const RankCosts costs = meta.costs();
  for (const auto& [group, operations] : costs.sent)
    for (const auto& [operation, sent] : operations) bytes += sent;
  return bytes;
}

// Megatron-LM's log has two setup times, and then the times of every completed interval.
TEST(MetaRank, LogsOnlyCompletedIntervals) {
  const double setup = 2 * sizeof(double);
  const double interval = static_cast<double>(named({}, kLevel).size() * sizeof(double));
  ASSERT_GT(interval, 0);
  EXPECT_EQ(logged(9), setup);
  EXPECT_EQ(logged(10), setup + interval);
  EXPECT_EQ(logged(11), setup + interval);
}

// The number of prompt tokens before a tokenizer exists.
TEST(MetaRank, SftPromptsBecomeConversations) {
  const test::TempFolder folder;
  RunConfig config = testing::small_config();
  config.train.sample_prompt = "What is seven?";
  EXPECT_EQ(most_prompt_tokens(config), 14);
  config.data.sft = true;
  config.data.tokenizer = (folder / "tokenizer.json").string();
  EXPECT_EQ(most_prompt_tokens(config), 14) << "no template yet";
  write_file_atomically(
      folder / "chat_template.jinja",
      "<system>Answer in a word.</system>{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  const std::string conversation = "<system>Answer in a word.</system><user>What is seven?<assistant>";
  EXPECT_EQ(most_prompt_tokens(config), static_cast<int64_t>(conversation.size()));
}

struct Steps {
  LaidOut layout;
  std::vector<int64_t> micro_batches;  // per rank
  bool deterministic = false;          // sums in trees, with powers of two
};

// Covers every schedule, from steps that are run completely to steps with many more micro-batches than are run.
std::vector<Steps> many_steps() {
  std::vector<Steps> all = {{{""}, {1, 10, 23, 24, 100}},
                            {{"shard=2,expert=2", "optim_grads_params"}, {23, 60}},
                            {{"pipeline=4,shard=2,expert=2", "optim_grads"}, {150}},
                            {{"pipeline=3,shard=2,expert=2", "optim_grads_params", 2}, {200}},
                            {{"pipeline=2,shard=2", "optim_grads_params", 0, true, false}, {90}},
                            {{"pipeline=2,tensor=2"}, {90}},
                            {{"pipeline=2,context=2"}, {91}},
                            {{"pipeline=8"}, {8, 200}},
                            {{"shard=2,expert=2", "optim_grads"}, {1, 2, 64}, true},
                            {{"pipeline=3", "auto", 2}, {64, 256}, true},
                            {{"pipeline=4,replicate=2,expert=2"}, {2, 8, 128}, true}};
  for (const int64_t stages : {2, 3, 4})
    for (const int64_t chunks : {0, 2, 3})
      all.push_back({{cat("pipeline=", stages), "auto", chunks}, {2, 30, 31, 100, 150 + stages - 1, 301}});
  return all;
}

RunConfig with_micro_batches(const LaidOut& layout, int64_t of_a_rank, bool deterministic = false) {
  RunConfig config = testing::divisible_config("float32");
  config = testing::laid_out(config, layout);
  config.model.num_layers = config.parallel.pipeline_model_parallel_size * std::max<int64_t>(layout.chunks, 1);
  config.model.attention.attention_dropout = 0.1;
  config.train.global_batch_size = of_a_rank * config.parallel.data_ranks();
  config.parallel.deterministic = deterministic;
  return config;
}

void expect_equal_plans(const RankPlan& a, const RankPlan& b) {
  const auto same = [](const Cost& x, const Cost& y) {
    return std::abs(x.flops - y.flops) <= 1e-12 * y.flops && std::abs(x.bytes - y.bytes) <= 1e-12 * y.bytes &&
           x.calls == y.calls;
  };
  EXPECT_EQ(a.arena_bytes, b.arena_bytes);
  EXPECT_EQ(a.tags, b.tags);
  for (const auto& [of_a, of_b] : {std::pair{&a.step, &b.step}, {&a.evaluation, &b.evaluation}}) {
    ASSERT_EQ(of_a->size(), of_b->size());
    for (const auto& [part, kernels] : *of_b)
      for (const auto& [kernel, cost] : kernels) EXPECT_TRUE(same(of_a->at(part).at(kernel), cost)) << kernel;
  }
  for (const auto& [of_a, of_b] : {std::pair{&a.calls, &b.calls}, {&a.eval_calls, &b.eval_calls}}) {
    ASSERT_EQ(of_a->size(), of_b->size());
    for (const auto& [kind, cost] : *of_b) EXPECT_TRUE(same(of_a->at(kind), cost)) << kind.name;
  }
  for (const auto& [of_a, of_b] : {std::pair{&a.sent, &b.sent}, {&a.eval_sent, &b.eval_sent}})
    for (const auto& [group, operations] : *of_b)
      for (const auto& [operation, bytes] : operations)
        EXPECT_NEAR(of_a->at(group).at(operation), bytes, 1e-12 * bytes) << group << " " << operation;
}

TEST(MetaRank, SkippedMicroBatchesChangeNoFigure) {
  for (const Steps& steps : many_steps())
    for (const int64_t micro_batches : steps.micro_batches) {
      const ResolvedConfig resolved = resolve(with_micro_batches(steps.layout, micro_batches, steps.deterministic), {});
      SCOPED_TRACE(cat(testing::described(steps.layout), ", ", micro_batches, " micro-batches",
                       steps.deterministic ? ", deterministic" : ""));
      const Plan some = make_plan(resolved), all = make_plan(resolved, {.every_micro_batch = true});
      ASSERT_EQ(some.ranks.size(), all.ranks.size());
      for (size_t rank = 0; rank < all.ranks.size(); ++rank) {
        SCOPED_TRACE(cat("rank ", rank));
        expect_equal_plans(some.ranks[rank], all.ranks[rank]);
      }
    }
}

// Without repetition a plan would be correct but as slow as running all micro-batches. With it, only those run that
// fill and drain the pipeline, plus a few groups that show that memory repeats, however many there are.
TEST(MetaRank, RunsTheSameNumberOfMicroBatchesForAnyTotal) {
  for (const Steps& steps : many_steps()) {
    const auto run = [&](int64_t micro_batches) {
      const ResolvedConfig resolved = resolve(with_micro_batches(steps.layout, micro_batches, steps.deterministic), {});
      const Layout layout = layout_of(resolved);
      int64_t most = 0;
      for (int rank = 0; rank < layout.world_size(); ++rank) {
        MetaRank meta(resolved, layout, rank, MetaRank::Run::some);
        for (int64_t iteration = 1; iteration <= 2; ++iteration) {
          meta.reset_costs();
          meta.step(micro_batches, iteration);
          most = std::max(most, micro_batches - meta.micro_batches_left_out());
        }
        meta.reset_costs();
        if (const int64_t together = meta.evaluate(); together > 1)
          most = std::max(most, together - meta.micro_batches_left_out());
        EXPECT_TRUE(meta.repeats()) << "rank " << rank;
      }
      return most;
    };
    SCOPED_TRACE(cat(testing::described(steps.layout), steps.deterministic ? ", deterministic" : ""));
    const int64_t chunks = std::max<int64_t>(steps.layout.chunks, 1);
    const int64_t stages = with_micro_batches(steps.layout, 1).parallel.pipeline_model_parallel_size;
    const int64_t most = run(512);
    EXPECT_LE(most, chunks == 1 ? 3 * stages + 4 : 12 * stages);
    EXPECT_EQ(run(8192), most) << "the same number of groups has one more";
  }
}

// Planning many micro-batches takes no longer than planning a hundred.
TEST(MetaRank, PlansAnyNumberOfMicroBatches) {
  constexpr int64_t kMany = 20'000;
  for (const LaidOut& layout : {LaidOut{""}, {"pipeline=4"}, {"pipeline=2", "auto", 2}}) {
    SCOPED_TRACE(testing::described(layout));
    const auto plan_of = [&](int64_t micro_batches) {
      return make_plan(resolve(with_micro_batches(layout, micro_batches), {}), {.ranks = PlanOptions::Ranks::by_class});
    };
    const Plan many = plan_of(kMany), fewer = plan_of(kMany / 2), few = plan_of(kMany / 4);
    EXPECT_NEAR(many.step_flops - fewer.step_flops, 2 * (fewer.step_flops - few.step_flops), 1e-9 * many.step_flops);
    EXPECT_GT(many.arena_bytes(), fewer.arena_bytes()) << "the buffers hold tokens and losses of all micro-batches";
  }
}

}  // namespace
}  // namespace witan
