#include "witan/planner/search/search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "train/step/run_support.h"
#include "witan/base/error.h"
#include "witan/planner/pages/search_page.h"
#include "witan/train/config/resolve.h"

namespace witan {
namespace {

RunConfig moe_config() {
  RunConfig config = testing::small_config();
  config.model.num_layers = 4;
  config.model.hidden_size = 512;
  config.model.vocab_size = 4096;
  config.model.dtype = "bfloat16";
  config.model.attention.num_attention_heads = config.model.attention.num_query_groups = 4;
  config.model.mlp.ffn_hidden_size = 2048;
  config.model.moe.num_experts = 4;
  config.data.seq_length = 510;  // not divisible by four
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 16;
  config.train.sample_tokens = 0;
  config.parallel.expert_model_parallel_size = 0;
  config.parallel.device = "cuda";
  config.parallel.ranks = 4;
  return config;
}

// Two hosts with two GPUs each.
Cluster cluster() {
  return {find_gpu("h100"), 2, 450e9, 50e9};
}

SearchOptions options_for(int64_t memory) {
  SearchOptions options;
  options.limits = {.gpus = 4, .gpus_per_host = 2};
  options.memory = memory;
  options.vocab_size = 4096;
  return options;
}

int64_t dropped(const SearchResult& result) {
  int64_t sum = result.too_large + result.estimated_too_large + result.slower;
  for (const auto& [key, count] : result.refused) sum += count;
  return sum;
}

// Three GPUs cannot divide 16 samples, 4 heads, 2 layers or 512 tokens in pairs of chunks; two and four can.
TEST(Search, SuggestsNeighboursOfGpuCountsThatDivideNothing) {
  RunConfig config = moe_config();
  config.data.seq_length = 512;
  config.model.num_layers = 2;
  SearchOptions options = options_for(int64_t{3} << 30);
  options.limits.gpus = 3;
  config.parallel.ranks = 3;
  const SearchResult result = search_layouts(config, cluster(), options);
  EXPECT_EQ(result.possible, 0);
  EXPECT_EQ(result.considered, dropped(result));
  EXPECT_EQ(result.nearest_gpus, (std::vector<int64_t>{2, 4}));
  for (const auto& [key, count] : result.refused) EXPECT_TRUE(result.why.at(key).starts_with(key)) << key;
  EXPECT_EQ(nearest_gpus_text(result), "the nearest that work are 2 and 4 GPUs");

  options.limits.gpus = config.parallel.ranks = 4;
  const SearchResult some = search_layouts(config, cluster(), options);
  EXPECT_GT(some.possible, 0);
  EXPECT_TRUE(some.nearest_gpus.empty());
}

TEST(Search, RanksFittingLayoutsByTime) {
  const SearchResult result = search_layouts(moe_config(), cluster(), options_for(int64_t{3} << 30));
  EXPECT_EQ(result.considered, dropped(result) + result.planned) << "each is reported once";
  EXPECT_GT(result.refused.size(), 0u);
  ASSERT_GT(result.best.size(), 2u);
  EXPECT_TRUE(std::ranges::is_sorted(result.best, {}, [](const FoundLayout& one) { return one.time.seconds; }));
  for (const FoundLayout& one : result.best) {
    SCOPED_TRACE(mesh_text(one.config));
    const Plan plan = make_plan(one.config);
    EXPECT_LE(plan.needed_bytes(), int64_t{3} << 30);
    EXPECT_EQ(one.plan.needed_bytes(), plan.needed_bytes()) << "as `plan` shows it";
    EXPECT_EQ(mesh_text(resolve(one.asked, {.vocabulary = 4096})), mesh_text(one.config))
        << "the flags that the page suggests";
  }
  for (const FoundLayout& one : result.near) EXPECT_GT(one.plan.needed_bytes(), int64_t{3} << 30);
}

TEST(Search, ReportsProgress) {
  SearchOptions options = options_for(int64_t{3} << 30);
  std::vector<std::string> phases;
  int64_t last = 0, all = 0;
  options.watch = [&](const char* what, int64_t done, int64_t of) {
    if (done == 0) {
      EXPECT_EQ(last, all) << "the previous phase was reported as complete";
      phases.emplace_back(what);
    } else {
      EXPECT_EQ(done, last + 1);
    }
    last = done, all = of;
  };
  const SearchResult result = search_layouts(moe_config(), cluster(), options);
  EXPECT_EQ(phases, (std::vector<std::string>{"estimating", "planning", "planning to the byte"}));
  EXPECT_EQ(last, static_cast<int64_t>(result.best.size()));
}

// These layouts and times come from running all micro-batches of all layouts, by virtual stages.
TEST(Search, RanksLikeASearchWithoutShortcuts) {
  const std::map<int64_t, std::vector<std::string>> expected = {
      {0,
       {"shard=2,pipeline=2; optim, micro-batch 2: 0.05962 s",
        "replicate=2,pipeline=2; no_shard, micro-batch 2: 0.05981 s",
        "shard=2,pipeline=2,expert=2; optim, micro-batch 2: 0.06216 s",
        "replicate=2,pipeline=2,expert=2; no_shard, micro-batch 2: 0.06218 s",
        "shard=2,pipeline=2; optim, micro-batch 2, recompute selective: 0.06379 s",
        "replicate=2,pipeline=2; no_shard, micro-batch 2, recompute selective: 0.06398 s",
        "shard=2,pipeline=2,expert=2; optim, micro-batch 2, recompute selective: 0.06632 s",
        "replicate=2,pipeline=2,expert=2; no_shard, micro-batch 2, recompute selective: 0.06634 s"}},
      {2,
       {"shard=2,pipeline=2; optim, 2 virtual stages, micro-batch 2: 0.07526 s",
        "replicate=2,pipeline=2; no_shard, 2 virtual stages, micro-batch 2: 0.07544 s",
        "shard=2,pipeline=2,expert=2; optim, 2 virtual stages, micro-batch 2: 0.07778 s",
        "replicate=2,pipeline=2,expert=2; no_shard, 2 virtual stages, micro-batch 2: 0.0778 s",
        "shard=2,pipeline=2; optim, 2 virtual stages, micro-batch 2, recompute selective: 0.07894 s",
        "replicate=2,pipeline=2; no_shard, 2 virtual stages, micro-batch 2, recompute selective: 0.07911 s",
        "shard=2,pipeline=2,expert=2; optim, 2 virtual stages, micro-batch 2, recompute selective: 0.08145 s",
        "replicate=2,pipeline=2,expert=2; no_shard, 2 virtual stages, micro-batch 2, recompute selective: 0.08147 s"}}};
  for (const auto& [chunks, layouts] : expected) {
    RunConfig config = moe_config();
    config.train.global_batch_size = 256;
    config.parallel.pipeline_model_parallel_size = 2;
    config.parallel.num_virtual_stages_per_pipeline_rank = chunks;
    SearchOptions options = options_for(int64_t{3} << 30);
    options.limits.held = {"pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"};
    std::vector<std::string> found;
    for (const FoundLayout& one : search_layouts(config, cluster(), options).best)
      found.push_back(
          cat(mesh_text(one.config), "; ", rest_text(one.config), fmt::format(": {:.4g} s", one.time.seconds)));
    EXPECT_EQ(found, layouts);
  }
}

// Estimates and quick plans lose nothing: no possible layout is faster.
TEST(Search, FindsTheFastestLayout) {
  RunConfig config = moe_config();
  config.model.num_layers = 2;
  config.model.recompute_granularity = "selective";
  config.train.global_batch_size = 8;
  SearchOptions options = options_for(int64_t{2} << 30);
  options.limits.keep_micro_batch_size = true;
  options.most_quick = 20;
  const SearchResult result = search_layouts(config, cluster(), options);
  ASSERT_FALSE(result.best.empty());
  EXPECT_GT(result.slower + result.estimated_too_large, 0) << "some were not planned";
  const Ceilings ceilings = cluster().ceilings({"bfloat16", 4, 1});
  double fastest = std::numeric_limits<double>::infinity();
  for (const LayoutChoice& choice : layout_choices(config, options.limits)) {
    std::optional<ResolvedConfig> one;
    try {
      one = resolve(with_layout(config, choice), {.vocabulary = 4096});
    } catch (const ConfigError&) {
      continue;
    }
    const Plan plan = make_plan(*one);
    const Cluster of = cluster();
    if (plan.needed_bytes() <= options.memory)
      fastest = std::min(fastest, predict_step(plan, *one, ceilings, &of).seconds);
  }
  EXPECT_LE(result.best.front().time.seconds, 1.0001 * fastest);
}

std::string page_of(const SearchResult& result, const SearchOptions& options) {
  return format_search(result, moe_config(), cluster(), options,
                       [](const RunConfig& config) { return cat("witan train --ranks ", config.parallel.ranks); });
}

TEST(Search, PageShowsFittingLayoutsAndTheirFlags) {
  const SearchOptions options = options_for(int64_t{3} << 30);
  const SearchResult result = search_layouts(moe_config(), cluster(), options);
  const std::string page = page_of(result, options);
  for (const std::string& piece : {std::string("4 GPUs of h100, 3.00 GiB a GPU"), mesh_text(result.best.front().config),
                                   cat(result.considered), std::string("considered"), std::string("impossible ("),
                                   std::string("tokens/s/GPU"), std::string("as flags to add to this command"),
                                   std::string("witan train --ranks 4"), std::string("not measurements")})
    EXPECT_NE(page.find(piece), std::string::npos) << piece << " is missing from\n" << page;
  const auto json = nlohmann::json::parse(search_json(result, moe_config(), options));
  EXPECT_EQ(json["best"].size(), result.best.size());
  EXPECT_EQ(json["best"][0]["needed_bytes"], result.best.front().plan.needed_bytes());
  EXPECT_EQ(json["best"][0]["mesh"], mesh_text(result.best.front().config));
}

// The keys are those that a search can hold fixed.
TEST(Search, JsonHasNumbersAndBooleansOfFixedSettings) {
  RunConfig config = moe_config();
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.data_parallel_sharding_strategy = "optim_grads_params";
  config.parallel.use_distributed_optimizer = true;
  SearchOptions options = options_for(0);
  for (const char* key : searched_keys()) options.limits.held.emplace(key);
  const auto held = nlohmann::json::parse(search_json({}, config, options))["held"];
  ASSERT_EQ(held.size(), options.limits.held.size());
  EXPECT_EQ(held["tensor_model_parallel_size"], 2);
  EXPECT_EQ(held["use_distributed_optimizer"], true);
  EXPECT_EQ(held["data_parallel_sharding_strategy"], "optim_grads_params");
  for (const Field& field : config.fields()) {
    if (!held.contains(field.name)) continue;
    EXPECT_EQ(held[field.name].is_string(), std::holds_alternative<std::string*>(field.value)) << field.name;
  }
  EXPECT_NE(held_text(config, options).find("use_distributed_optimizer = true"), std::string::npos);
}

TEST(Search, ReportsTheNearestLayoutIfNoneFits) {
  const SearchOptions options = options_for(int64_t{1300} << 20);  // the reserve takes most of it
  const SearchResult result = search_layouts(moe_config(), cluster(), options);
  EXPECT_TRUE(result.best.empty());
  ASSERT_FALSE(result.near.empty());
  EXPECT_TRUE(std::ranges::is_sorted(result.near, {}, [](const FoundLayout& one) { return one.plan.needed_bytes(); }));
  const std::string page = page_of(result, options);
  for (const char* piece : {"No layout fits in 1.27 GiB per GPU. The nearest layout needs", "Layouts that nearly fit"})
    EXPECT_NE(page.find(piece), std::string::npos) << page;
}

}  // namespace
}  // namespace witan
