// resolve(): the values that it fills in with their reasons; resolving again changes nothing.
#include "witan/train/config/resolve.h"

#include <gtest/gtest.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "support/message_of.h"
#include "train/step/run_support.h"
#include "witan/base/config/fields.h"

namespace witan {
namespace {

using test::message_of;
using testing::small_config;

std::string text_of(RunConfig config) {
  return write_toml(config.fields());
}

std::string reason_of(const ResolvedConfig& config, const std::string& key) {
  for (const Decision& one : config.decisions())
    if (one.key == key) return cat(one.value, ": ", one.reason);
  return "";
}

RunConfig learned_positions() {
  RunConfig config;
  config.model.attention.position_embedding_type = "learned_absolute";
  return config;
}

RunConfig pipeline_of_experts() {
  RunConfig config;
  config.parallel.pipeline_model_parallel_size = 2;
  config.train.global_batch_size = 16;
  config.optimizer.lr_warmup_iters = 50;
  return config;
}

// Only resolve() can create a resolved configuration, which is immutable.
static_assert(!std::is_default_constructible_v<ResolvedConfig>);
static_assert(!std::is_constructible_v<ResolvedConfig, RunConfig>);
static_assert(!std::is_convertible_v<ResolvedConfig&, RunConfig&>);
static_assert(std::is_same_v<decltype(*std::declval<ResolvedConfig&>()), const RunConfig&>);
static_assert(std::is_same_v<decltype(std::declval<ResolvedConfig&>().operator->()), const RunConfig*>);
static_assert(std::is_same_v<decltype(std::declval<ResolvedConfig&>().given()), const RunConfig&>);

TEST(Resolve, FillsInAutomaticValues) {
  const ResolvedConfig config = resolve(RunConfig(), {.cores = 2, .vocabulary = 4096});
  EXPECT_EQ(config->parallel.ranks, 2);
  EXPECT_EQ(config->parallel.threads, 1);
  EXPECT_EQ(config->parallel.expert_model_parallel_size, 2);
  EXPECT_EQ(config->model.vocab_size, 4096);
  RunConfig wide;
  wide.train.global_batch_size = 24;
  const ResolvedConfig of_many_cores = resolve(wide, {.cores = 64, .vocabulary = 100});
  EXPECT_EQ(of_many_cores->parallel.ranks, 6);
  EXPECT_EQ(of_many_cores->parallel.threads, 10);
  RunConfig small;
  small.model.vocab_size = 50;
  EXPECT_NE(
      message_of<ConfigError>([&] { resolve(small, {.cores = 2, .vocabulary = 100}); }).find("the tokenizer has 100"),
      std::string::npos);
}

TEST(Resolve, ErrorsOfSmallVocabulariesNameTheTokenizer) {
  RunConfig config;
  const auto refusal = [&](int64_t size, int64_t tokenizer) {
    config.model.vocab_size = size;
    return message_of<ConfigError>([&] { resolve(config, {.cores = 2, .vocabulary = tokenizer}); });
  };
  EXPECT_EQ(refusal(512, 4096),
            "vocab_size = 512, but the tokenizer that the run trains may have tokenizer_vocab_size = 4096 entries: set "
            "that to 512 too (--tokenizer-vocab-size 512), leave vocab_size out, or raise it");
  EXPECT_EQ(refusal(200, 4096),
            "vocab_size = 200, but the tokenizer that the run trains may have tokenizer_vocab_size = 4096 entries: "
            "leave vocab_size out, or raise it")
      << "fewer than the bytes";
  EXPECT_EQ(refusal(512, 1000),
            "vocab_size = 512, but the tokenizer has 1000 entries: leave vocab_size out, or raise it")
      << "the trained tokenizer";
  config.data.tokenizer = "t.json";
  EXPECT_EQ(refusal(512, 4096),
            "vocab_size = 512, but the tokenizer has 4096 entries: leave vocab_size out, or raise it");
  config.data.tokenizer.clear();
  config.data.bpe.vocab_size = 512;
  config.model.vocab_size = 512;
  EXPECT_NO_THROW(resolve(config, {.cores = 2, .vocabulary = 512}));
}

TEST(Resolve, RanksFormWholePipelines) {
  RunConfig config;
  config.parallel.pipeline_model_parallel_size = 2;
  // Two micro-batches for two pipelines.
  const ResolvedConfig two = resolve(config, {.cores = 7, .vocabulary = 4096});
  EXPECT_EQ(two->parallel.ranks, 4);
  EXPECT_EQ(two->parallel.expert_model_parallel_size, 2);
  RunConfig narrow;
  narrow.parallel.pipeline_model_parallel_size = 4;
  EXPECT_EQ(resolve(narrow, {.cores = 1, .vocabulary = 4096})->parallel.ranks, 4);
}

// The padding of the vocabulary depends on the model and not on the layout.
TEST(Resolve, TheVocabularyIsTheTokenizersInEveryLayout) {
  for (const int64_t tensor : {1, 2, 4}) {
    RunConfig config;
    config.parallel.tensor_model_parallel_size = tensor;
    config.parallel.sequence_parallel = tensor > 1;
    config.model.make_vocab_size_divisible_by = 128;
    const ResolvedConfig of_tokenizer = resolve(config, {.cores = 4, .vocabulary = 50257});
    EXPECT_EQ(of_tokenizer->model.vocab_size, 50257);
    EXPECT_EQ(of_tokenizer->model.padded_vocab_size(), 50304);
    config.model.vocab_size = 50305;
    const ResolvedConfig of_its_own = resolve(config, {.cores = 4, .vocabulary = 50257});
    EXPECT_EQ(of_its_own->model.vocab_size, 50305);
    EXPECT_EQ(of_its_own->model.padded_vocab_size(), 50432);
  }
}

TEST(Resolve, PackedDocumentsAreSeparated) {
  RunConfig packed;
  packed.data.data_packing = "best_fit";
  const ResolvedConfig config = resolve(packed, {.cores = 2, .vocabulary = 100});
  EXPECT_TRUE(config->data.reset_position_ids && config->data.reset_attention_mask);
  const ResolvedConfig end_to_end = resolve(RunConfig(), {.cores = 2, .vocabulary = 100});
  EXPECT_FALSE(end_to_end->data.reset_position_ids || end_to_end->data.reset_attention_mask);
}

TEST(Resolve, ConversationsAreSeparatedWhereASampleHasSeveral) {
  const auto masks = [](const char* packing, bool preferences) {
    RunConfig tuned;
    tuned.data.sft = true;
    tuned.data.tokenizer = "t.json";
    tuned.data.packing = packing;
    tuned.data.preferences = preferences;
    if (preferences) tuned.objective.objective = "preference";
    return resolve(tuned, {.cores = 2, .vocabulary = 100})->data.reset_attention_mask;
  };
  EXPECT_TRUE(masks("greedy", false));
  EXPECT_TRUE(masks("best_fit", false));
  EXPECT_FALSE(masks("none", false));
  EXPECT_TRUE(masks("none", true)) << "both answers of a pair lie in one row";
}

TEST(Resolve, LearnedPositionsCoverTheSequenceLength) {
  EXPECT_EQ(resolve(RunConfig(), {.cores = 2, .vocabulary = 100})->model.attention.max_position_embeddings, 0)
      << "rotary positions have no limit";
  EXPECT_EQ(resolve(learned_positions(), {.cores = 2, .vocabulary = 100})->model.attention.max_position_embeddings,
            256);
}

TEST(Resolve, UsesAGpuIfThereIsOne) {
  EXPECT_EQ(resolve(RunConfig(), {.cores = 8})->parallel.device, "cpu");
  const ResolvedConfig on_gpus = resolve(RunConfig(), {.cores = 8, .gpus = 1});
  EXPECT_EQ(on_gpus->parallel.device, "cuda");
  EXPECT_EQ(on_gpus->parallel.ranks, 1) << "one GPU for each rank";
  RunConfig on_cpu;
  on_cpu.parallel.device = "cpu";
  EXPECT_EQ(resolve(on_cpu, {.cores = 8, .gpus = 1})->parallel.device, "cpu");
}

// The launcher's ranks override the configuration's; given threads stay.
TEST(Resolve, ALauncherOverridesTheConfiguration) {
  Facts facts{.cores = 8};
  facts.launched = {.ranks = 2, .ranks_per_process = 1, .local_ranks = 1};
  RunConfig given;
  given.parallel.ranks = 1;
  const ResolvedConfig config = resolve(given, facts);
  EXPECT_EQ(config->parallel.ranks, 2);
  EXPECT_EQ(config->parallel.ranks_per_process, 1);
  EXPECT_EQ(config->parallel.threads, 8) << "all of the host's cores for its only rank";
  EXPECT_EQ(config.given().parallel.ranks, 1) << "a resumed run keeps it";
  given.parallel.threads = 3;
  EXPECT_EQ(resolve(given, facts)->parallel.threads, 3);
}

TEST(Resolve, ReachableMemoryIsAFact) {
  Facts facts{.cores = 8, .gpus = 2};
  facts.launched = {
      .ranks = 2, .ranks_per_process = 1, .local_ranks = 2, .peer_islands = {0, 1}, .host_islands = {0, 0}};
  const ResolvedConfig config = resolve({}, facts);
  EXPECT_EQ(config->parallel.host_islands, (std::vector<int>{0, 0}));
  EXPECT_FALSE(config->parallel.through_host);
  EXPECT_EQ(config->parallel.peer_islands, (std::vector<int>{0, 1}));
  EXPECT_TRUE(config->parallel.peer_memory);
  EXPECT_EQ(config.with([](RunConfig&) {})->parallel.peer_islands, (std::vector<int>{0, 1}));
  facts.through_host = true;
  EXPECT_TRUE(resolve(resolve({}, facts), {})->parallel.through_host);
  facts.peer_memory = false;
  EXPECT_FALSE(resolve({}, facts)->parallel.peer_memory);
  EXPECT_FALSE(resolve(resolve({}, facts), {})->parallel.peer_memory) << "what was disabled stays disabled";
}

// A schedule as long as the run keeps the length of the checkpoint's run; a given length stays.
TEST(Resolve, AScheduleHasTheLengthOfTheCheckpointsRun) {
  RunConfig config;
  config.optimizer.lr_warmup_iters = 10;
  EXPECT_EQ(resolve(config, {})->optimizer.lr_decay_iters, 0);
  EXPECT_EQ(resolve(config, {.schedule_steps = 200})->optimizer.lr_decay_iters, 200);
  EXPECT_EQ(resolve(config, {.schedule_steps = 5})->optimizer.lr_decay_iters, 11) << "after the warm-up";
  config.optimizer.lr_decay_iters = 300;
  EXPECT_EQ(resolve(config, {.schedule_steps = 200})->optimizer.lr_decay_iters, 300);
}

// Resolving a resolved configuration again changes nothing, even with other facts.
TEST(Resolve, ResolvingAgainChangesNothing) {
  Facts launched{.cores = 4, .vocabulary = 300, .schedule_steps = 70};
  launched.launched = {.ranks = 4, .ranks_per_process = 2, .local_ranks = 4};
  const std::vector<Facts> all = {{}, {.cores = 7, .vocabulary = 4096}, {.cores = 64, .gpus = 8}, launched};
  for (const RunConfig& given : {RunConfig(), small_config(), learned_positions(), pipeline_of_experts()})
    for (const Facts& facts : all) {
      RunConfig asked = given;
      asked.train.global_batch_size = 32;  // divisible by four ranks
      if (facts.vocabulary && asked.model.vocab_size > 0) asked.model.vocab_size = 5000;
      const ResolvedConfig once = resolve(asked, facts);
      const ResolvedConfig again = resolve(*once, facts);
      EXPECT_EQ(text_of(again), text_of(once));
      EXPECT_TRUE(again.decisions().empty()) << again.decisions().front().key;
      Facts others{.cores = 3, .gpus = 2, .schedule_steps = {}};
      EXPECT_EQ(text_of(resolve(*once, others)), text_of(once)) << "facts no longer matter";
      EXPECT_EQ(text_of(once.given()), text_of(asked));
    }
}

// A rank waits for a part of a checkpoint at least as long as in any other collective.
TEST(Resolve, TheCheckpointTimeoutIsAtLeastTheCommunicationTimeout) {
  RunConfig given = small_config();
  const auto resolved = [&](double distributed, double checkpoint) {
    given.parallel.distributed_timeout_minutes = distributed;
    given.parallel.checkpoint_timeout_minutes = checkpoint;
    return resolve(given, {});
  };
  const ResolvedConfig raised = resolved(90, 30);
  EXPECT_EQ(raised->parallel.checkpoint_timeout_minutes, 90);
  EXPECT_EQ(60 * raised->parallel.checkpoint_timeout_minutes, raised->parallel.checkpoint_deadline_seconds());
  EXPECT_EQ(reason_of(raised, "checkpoint_timeout_minutes"), "90: never less than distributed_timeout_minutes");
  EXPECT_TRUE(resolve(*raised, {}).decisions().empty());
  for (const double checkpoint : {5.0, 30.0}) {
    EXPECT_EQ(resolved(5, checkpoint)->parallel.checkpoint_timeout_minutes, checkpoint);
    EXPECT_EQ(reason_of(resolved(5, checkpoint), "checkpoint_timeout_minutes"), "");
  }
}

// All answers to a prompt are one data-parallel rank's: 24 rows are 6 prompts, 4 are one.
TEST(Resolve, RanksShareThePromptsOfSampledAnswers) {
  RunConfig config;
  config.data.sft = config.rollout.rollouts = true;
  config.data.tokenizer = "tokenizer.json";
  config.data.packing = "none";
  config.objective.objective = "policy";
  config.rollout.max_completion_length = 8;
  config.rollout.num_generations = 4;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 24;
  const ResolvedConfig six = resolve(config, {.cores = 4, .vocabulary = 300});
  EXPECT_EQ(six->parallel.ranks, 3);
  EXPECT_EQ(
      reason_of(six, "ranks"),
      "3: the most that share global_batch_size / micro_batch_size = 24 and the 6 prompts of a step evenly, with 4 "
      "cores");
  config.train.global_batch_size = 4;
  EXPECT_EQ(resolve(config, {.cores = 4, .vocabulary = 300})->parallel.ranks, 1);
}

TEST(Resolve, EveryDecisionHasAReason) {
  const ResolvedConfig config = resolve(learned_positions(), {.cores = 4, .vocabulary = 300});
  EXPECT_EQ(reason_of(config, "vocab_size"), "300: the tokenizer's");
  EXPECT_EQ(reason_of(config, "max_position_embeddings"), "256: seq_length");
  EXPECT_EQ(reason_of(config, "device"), "cpu: no usable GPU");
  EXPECT_EQ(reason_of(config, "ranks"),
            "2: the most that share global_batch_size / micro_batch_size = 2 evenly, with 4 cores");
  EXPECT_EQ(reason_of(config, "threads"), "2: 4 cores for 2 ranks");
  EXPECT_EQ(reason_of(config, "expert_model_parallel_size"), "2: the largest that divides the ranks and the 8 experts");
  EXPECT_EQ(reason_of(config, "seq_length"), "") << "this value was given";
}

// A given type of exchange stays, and one rank has none.
TEST(Resolve, ContextParallelRanksExchangeHeadsIfDivisible) {
  RunConfig config = small_config();
  config.model.attention.num_attention_heads = 8;
  config.model.attention.num_query_groups = 2;
  config.model.hidden_size = 48;
  config.data.seq_length = 48;
  config.parallel.expert_model_parallel_size = 1;
  EXPECT_EQ(resolve(config, {})->parallel.cp_comm_type, "auto");
  const auto chosen = [&](int64_t context, const char* given = "auto") {
    config.parallel.context_parallel_size = config.parallel.ranks = context;
    config.parallel.cp_comm_type = given;
    const ResolvedConfig resolved = resolve(config, {});
    return cat(resolved->parallel.cp_comm_type, "; ", reason_of(resolved, "cp_comm_type"));
  };
  EXPECT_EQ(chosen(4), "a2a; a2a: 4 context-parallel ranks divide 8 heads in 2 query groups");
  EXPECT_EQ(chosen(3), "p2p; p2p: 3 context-parallel ranks do not divide 8 heads in 2 query groups");
  EXPECT_EQ(chosen(4, "p2p"), "p2p; ");
  EXPECT_EQ(chosen(4, "a2a"), "a2a; ");
}

// Nothing is decided if it has no effect, or in deterministic mode.
TEST(Resolve, GpuProductsSumGradientsForTheNorm) {
  RunConfig config = small_config();
  config.parallel.ranks = 1;
  config.train.global_batch_size = config.train.micro_batch_size;
  const auto chosen = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig changed = config;
    changed.parallel.device = "cuda";
    change(changed);
    const ResolvedConfig resolved = resolve(changed, {.gpus = 2});
    return cat(resolved->parallel.gradient_norm_fusion, "; ", reason_of(resolved, "gradient_norm_fusion"));
  };
  EXPECT_EQ(chosen([](RunConfig&) {}), "true; true: every expert lies on one GPU as a whole");
  EXPECT_EQ(chosen([](RunConfig& c) { c.parallel.device = "cpu"; }), "auto; ");
  EXPECT_EQ(chosen([](RunConfig& c) { c.parallel.deterministic = true; }), "auto; ");
  EXPECT_EQ(chosen([](RunConfig& c) { c.train.global_batch_size *= 2; }), "auto; ");
  EXPECT_EQ(chosen([](RunConfig& c) { c.parallel.gradient_norm_fusion = "false"; }), "false; ");
}

// Filled-in values are validated together with given ones.
TEST(Resolve, RefusesInvalidConfigurations) {
  RunConfig config = small_config();
  config.train.global_batch_size = 7;
  EXPECT_NE(message_of<ConfigError>([&] { resolve(config, {}); }).find("does not divide"), std::string::npos);
}

// This concerns only GPUs with 16-bit dtypes, and not padded vocabularies.
TEST(Resolve, WarnsOfSlowVocabularies) {
  RunConfig config = small_config();
  config.model.dtype = "bfloat16";
  config.model.vocab_size = 50257;
  EXPECT_EQ(slow_vocabulary(config), std::nullopt) << "on a CPU";
  config.parallel.device = "cuda";
  EXPECT_NE(slow_vocabulary(config).value_or("").find("--make-vocab-size-divisible-by"), std::string::npos);
  config.model.make_vocab_size_divisible_by = 128;
  EXPECT_EQ(slow_vocabulary(config), std::nullopt);
  config.model.make_vocab_size_divisible_by = 1;
  config.model.dtype = "float32";
  EXPECT_EQ(slow_vocabulary(config), std::nullopt);
}

TEST(ResolvedConfig, ChangesAreResolvedInACopy) {
  const ResolvedConfig config = resolve(small_config(), {});
  const std::string before = text_of(config);
  const ResolvedConfig other = config.with([](RunConfig& values) {
    values.parallel = {};
    values.parallel.ranks = 2;
  });
  EXPECT_EQ(other->parallel.ranks, 2);
  EXPECT_EQ(other->parallel.threads, 1) << "it has no automatic values";
  EXPECT_EQ(text_of(config), before);
  EXPECT_THROW(config.with([](RunConfig& values) { values.parallel.ranks = 3; }), ConfigError);
}

// Megatron-LM's number of iterations (tests/golden/data/ramp) and the end of its learning-rate schedule.
TEST(Resolve, SamplesDetermineTheLengthOfARun) {
  RunConfig config = small_config();
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  config.train.train_samples = 60;
  config.train.rampup_batch_size = "2,2,10";
  const ResolvedConfig resolved = resolve(config, {});
  EXPECT_EQ(resolved->train.train_iters, 9);
  EXPECT_EQ(resolved->schedule_length(), 60);
  EXPECT_EQ(reason_of(resolved, "train_iters"), "9: steps of train_samples = 60");
  EXPECT_EQ(reason_of(resolved, "lr_decay_samples"), "60: train_samples");
  EXPECT_EQ(text_of(*resolve(*resolved, {})), text_of(*resolved));
  config.optimizer.lr_decay_samples = 50;
  EXPECT_EQ(resolve(config, {})->optimizer.lr_decay_samples, 50);
  config.train.rampup_batch_size.clear();
  EXPECT_EQ(resolve(config, {})->train.train_iters, 7) << "without the incomplete last batch";
  config.train.train_samples = 7;
  EXPECT_NE(message_of<ConfigError>([&] { resolve(config, {}); }).find("train_samples = 7 is less than"),
            std::string::npos);
}

TEST(Resolve, RanksDivideEveryGlobalBatchSize) {
  RunConfig config = small_config();
  config.model.moe.num_experts = 0;
  config.parallel.ranks = 0;
  config.train.micro_batch_size = 1;
  config.train.rampup_batch_size = "4,6,100";  // up to 16
  EXPECT_EQ(resolve(config, {.cores = 8})->parallel.ranks, 2);
}

}  // namespace
}  // namespace witan
