// Contradictory configurations are refused, and recipes/default.toml documents the defaults.
#include "witan/train/config/config.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "train/step/run_support.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

std::string refusal(const std::function<void(RunConfig&)>& change) {
  RunConfig config = testing::small_config();
  config.validate();
  change(config);
  return test::message_of<ConfigError>([&] { config.validate(); });
}

TEST(RunConfig, RefusesIncompatibleSettings) {
  EXPECT_NE(refusal([](RunConfig& c) { c.train.global_batch_size = 7; }).find("does not divide"), std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) { c.parallel.ranks = 3; }).find("is not divisible by ranks = 3"),
            std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) {
              c.parallel = {16, 16, 1}, c.train.global_batch_size = 32;
            }).find("expert"),
            std::string::npos);
  EXPECT_EQ(refusal([](RunConfig& c) { c.parallel.ranks = c.parallel.pipeline_model_parallel_size = 4; }),
            "pipeline_model_parallel_size = 4: more pipeline stages than the 2 layers; the nearest that works is 2");
  EXPECT_EQ(refusal([](RunConfig& c) {
              c.parallel.ranks = c.parallel.pipeline_model_parallel_size = 2;
              c.parallel.num_virtual_stages_per_pipeline_rank = 2;
            }),
            "num_virtual_stages_per_pipeline_rank = 2: 2 pipeline stages of 2 virtual stages need 4 layers, and there "
            "are 2; the nearest "
            "that works is 1");
  EXPECT_EQ(
      refusal([](RunConfig& c) { c.model.attention.max_position_embeddings = 11; }),
      "seq_length = 12 is more than max_position_embeddings = 11: raise max_position_embeddings, or lower seq_length");
  EXPECT_EQ(refusal([](RunConfig& c) {
              c.parallel.ranks = c.parallel.expert_model_parallel_size = 4;
              c.parallel.hierarchical_expert_parallel_size = 2;
              c.model.moe.moe_token_dispatcher_type = "allgather";
            }),
            "hierarchical_expert_parallel_size = 2 sends each token to a host once, but moe_token_dispatcher_type = "
            "\"allgather\" sends all tokens to all ranks: set \"alltoall\", or hierarchical_expert_parallel_size = 0");
  EXPECT_NE(refusal([](RunConfig& c) { c.train.run = "../up"; }).find("without slashes"), std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) { c.data.data = "x", c.data.data_path = "y"; }).find("both set"),
            std::string::npos);
}

TEST(RunConfig, RefusesRewardsThatCannotBe) {
  const auto sampling = [](const std::function<void(RolloutConfig&)>& change) {
    return refusal([&](RunConfig& c) {
      c.data.sft = true;
      c.data.packing = "none";
      c.data.tokenizer = "tokenizer.json";
      c.objective.objective = "policy";
      c.rollout.rollouts = true;
      c.rollout.num_generations = 2;
      c.rollout.max_completion_length = 12;
      c.validate();
      change(c.rollout);
    });
  };
  EXPECT_EQ(
      sampling([](RolloutConfig& c) { c.max_completion_length = 13; }),
      "rollouts = true samples at most seq_length = 12 tokens after a prompt, and max_completion_length = 13 asks "
      "for more; lower it, or raise seq_length, which has room for prompt and answer together");
  EXPECT_EQ(sampling([](RolloutConfig& c) { c.reward = "exact,best"; }),
            "reward = exact,best: best is no reward: give one or several of exact, number, math, regex, format, length "
            "and command, with commas between them");
  EXPECT_EQ(sampling([](RolloutConfig& c) { c.reward = ""; }),
            "reward = : nothing is no reward: give one or several of exact, number, math, regex, format, length and "
            "command, with commas between them");
  EXPECT_EQ(sampling([](RolloutConfig& c) { c.reward = "math,math"; }),
            "reward = math,math: math is named twice; name it once, and give it a weight (reward_weights)");
  EXPECT_EQ(
      sampling([](RolloutConfig& c) { c.reward = "exact,math", c.reward_weights = "1"; }),
      "reward_weights = 1 must have a weight for each of reward = exact,math: 2 numbers with commas between them");
  EXPECT_EQ(sampling([](RolloutConfig& c) { c.reward_weights = "0"; }),
            "reward_weights = 0: takes numbers other than 0 with commas between them, not 0");
  EXPECT_EQ(sampling([](RolloutConfig& c) { c.reward_weights = "nan"; }),
            "reward_weights = nan: takes numbers other than 0 with commas between them, not nan");
  EXPECT_EQ(sampling([](RolloutConfig& c) { c.reward = "exact,command"; }),
            "reward = exact,command needs reward_command: set it, or leave command out of reward");
  EXPECT_EQ(sampling([](RolloutConfig& c) { c.reward = "regex"; }),
            "reward = regex needs reward_regex: set it, or leave regex out of reward");
  EXPECT_NE(sampling([](RolloutConfig& c) {
              c.reward = "format", c.reward_format = "(";
            }).find("reward_format = \"(\" does not compile"),
            std::string::npos);
}

// A rewind needs more samples than the run's steps use.
TEST(RunConfig, RefusesRewindsIfSamplesBelongToSteps) {
  EXPECT_NE(refusal([](RunConfig& c) {
              c.train.on_nan = "rewind";
              c.data.data_samples = "megatron";
            }).find("on_nan = rewind with data_samples = \"megatron\""),
            std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) {
              c.train.on_spike = "rewind";
              c.train.record_routes = "routes";
            }).find("on_spike = rewind with record_routes = routes"),
            std::string::npos);
  EXPECT_NE(refusal([](RunConfig& c) { c.train.straggler_threshold = 0.9; }).find("use a value above 1"),
            std::string::npos);
}

TEST(RunConfig, RefusesPackingOfOtherFormatsAndOrders) {
  const auto packed = [](const std::function<void(RunConfig&)>& change) {
    return refusal([&](RunConfig& c) {
      c.data.data_packing = "best_fit";
      change(c);
    });
  };
  EXPECT_NE(packed([](RunConfig& c) { c.data.data_samples = "megatron"; }).find("set data_samples = \"witan\""),
            std::string::npos);
  EXPECT_NE(packed([](RunConfig& c) { c.data.sft = true, c.data.tokenizer = "t.json"; }).find("packing decides how"),
            std::string::npos);
}

// Preferences, with one change.
std::string refused_preferences(const std::function<void(RunConfig&)>& change) {
  return refusal([&](RunConfig& c) {
    c.data.sft = c.data.preferences = true;
    c.data.tokenizer = "t.json";
    c.objective.objective = "preference";
    change(c);
  });
}

TEST(RunConfig, RefusesPreferencesOfOtherData) {
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refused_preferences([](RunConfig& c) { c.data.sft = false; }), "preferences = true reads pairs");
  expect(refused_preferences([](RunConfig& c) { c.data.preferences = false; }),
         "set sft = true and preferences = true");
  expect(refused_preferences([](RunConfig& c) { c.objective.objective = "cross_entropy"; }),
         "would learn from rejected answers");
  expect(refused_preferences([](RunConfig& c) { c.data.loss_on = "all"; }), "set loss_on = answers");
  expect(refused_preferences([](RunConfig& c) { c.model.mtp_num_layers = 1; }), "set mtp_num_layers = 0");
  expect(refused_preferences([](RunConfig& c) { c.rollout.rollouts = true; }), "set objective = policy");
}

TEST(RunConfig, RefusesReferencesThatCannotBe) {
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refused_preferences([](RunConfig& c) { c.objective.reference = "base"; }),
         "reference = base is the model without its adapters, and lora_rank = 0");
  expect(refused_preferences([](RunConfig& c) { c.objective.reference = "columns"; }),
         "reference = columns: preferences are read from rows of answers");
  expect(refused_preferences([](RunConfig& c) {
           c.model.lora_rank = 2;
           c.train.replay_routes = "routes";
         }),
         "replay_routes = routes is for the passes of one model");
  expect(refusal([](RunConfig& c) {
           c.objective = {.objective = "policy", .reference = "columns", .kl_loss_coef = 0.1};
           c.data.sft = true;
           c.data.tokenizer = "t.json";
           c.data.packing = "none";
           c.rollout.rollouts = true;
           c.train.sample_tokens = 0;
         }),
         "sampled answers have no column ref_logprobs");
}

TEST(RunConfig, FindsItsReference) {
  RunConfig config;
  EXPECT_EQ(config.reference(), ReferenceKind::none);
  config.objective.objective = "policy";
  EXPECT_EQ(config.reference(), ReferenceKind::none);  // without kl_loss_coef
  config.objective.kl_loss_coef = 0.1;
  EXPECT_EQ(config.reference(), ReferenceKind::columns);
  config.rollout.rollouts = true;
  EXPECT_EQ(config.reference(), ReferenceKind::start);
  config.model.lora_rank = 2;
  EXPECT_EQ(config.reference(), ReferenceKind::base);
  config.objective.reference = "start";
  EXPECT_EQ(config.reference(), ReferenceKind::start);
  config.objective.reference = "runs/other";
  EXPECT_EQ(config.reference(), ReferenceKind::source);
  config.objective = {.objective = "preference"};
  EXPECT_EQ(config.reference(), ReferenceKind::base);
  config.objective.dpo_reference_free = true;
  EXPECT_EQ(config.reference(), ReferenceKind::none);
}

TEST(RunConfig, RefusesSampleWeightsIfEachSampleIsReadOnce) {
  const auto refused = [](const char* data, const char* train, const char* valid) {
    return refusal([&](RunConfig& c) {
      c.train.full_validation = true;
      c.data.data_samples = "megatron";
      c.data.tokenizer = "t.json";
      c.data.data_path = data, c.data.train_data_path = train, c.data.valid_data_path = valid;
    });
  };
  EXPECT_NE(refused("1,a,2,b", "", "").find("full_validation = true with weights in data_path"), std::string::npos);
  EXPECT_NE(refused("", "a", "1,a,2,b").find("with weights in valid_data_path"), std::string::npos);
  RunConfig allowed = testing::small_config();
  allowed.train.full_validation = true;
  allowed.data.data_samples = "megatron";
  allowed.data.tokenizer = "t.json";
  allowed.data.train_data_path = "1,a,2,b";
  allowed.data.valid_data_path = "a,b";
  EXPECT_NO_THROW(allowed.validate());
}

TEST(RunConfig, GradientsAreNotNarrowerThanValues) {
  EXPECT_EQ(refusal([](RunConfig& c) { c.parallel.gradient_dtype = "bfloat16"; }),
            "gradient_dtype = bfloat16 needs dtype = bfloat16, got float32: gradients cannot be narrower than their "
            "parameters");
  EXPECT_EQ(refusal([](RunConfig& c) {
              c.model.dtype = "bfloat16";
              c.parallel.gradient_dtype = "bfloat16";
              c.parallel.deterministic = true;
            }),
            "gradient_dtype = bfloat16 and deterministic = true exclude each other: deterministic sums are formed in "
            "float32; set gradient_dtype = float32");
}

TEST(RunConfig, DeterministicModeKeepsTheBitsOfTheNorm) {
  EXPECT_EQ(refusal([](RunConfig& c) {
              c.parallel.gradient_norm_fusion = "true";
              c.parallel.deterministic = true;
            }),
            "gradient_norm_fusion = true and deterministic = true exclude each other: deterministic mode promises the "
            "bits of the norm in every layout; set gradient_norm_fusion = false");
}

TEST(RunConfig, DeterministicModeSumsExpertsInOneOrder) {
  const auto gather = [](int64_t ranks, int64_t tensor_of_experts) {
    return [=](RunConfig& c) {
      c.model.moe.moe_token_dispatcher_type = "allgather";
      c.parallel.ranks = ranks * tensor_of_experts;
      c.parallel.expert_model_parallel_size = ranks;
      c.parallel.expert_tensor_parallel_size = tensor_of_experts;
      c.parallel.deterministic = true;
    };
  };
  EXPECT_EQ(refusal(gather(2, 1)),
            "moe_token_dispatcher_type = allgather sums what a token's experts make of it rank by rank, but "
            "deterministic = true promises the bits of one rank; set moe_token_dispatcher_type = \"alltoall\", or "
            "deterministic = false");
  for (const auto& [ranks, tensor] : {std::pair<int64_t, int64_t>{1, 1}, {2, 2}}) {
    RunConfig config = testing::small_config();
    gather(ranks, tensor)(config);
    EXPECT_NO_THROW(config.validate()) << tensor << ": runs of one layout have the same bits";
  }
}

TEST(RunConfig, RanksThatShareTokensDrawMasksTogether) {
  EXPECT_EQ(refusal([](RunConfig& c) {
              c.model.moe.num_experts = 0;
              c.model.vocab_size = 62;
              c.model.hidden_size = 30;
              c.model.attention.kv_channels = 8;
              c.model.hidden_dropout = 0.1;
              c.parallel.ranks = c.parallel.tensor_model_parallel_size = 2;
              c.parallel.sequence_parallel = true;
            }),
            "sequence_parallel = true with hidden_dropout: hidden_size = 30 must be a multiple of 4, since dropout "
            "masks are drawn in groups of that size; the nearest that works is 32");
}

// Ranks divide each micro-batch, so there is no summation tree over micro-batches, and their number need not be a power
// of two.
TEST(RunConfig, DeterministicContextParallelismNeedsNoPowersOfTwo) {
  const auto divide = [](int64_t tensor) {
    return [=](RunConfig& c) {
      c.model.moe.num_experts = 0;
      c.model.vocab_size = 62;
      c.train.global_batch_size = 12;
      c.parallel.tensor_model_parallel_size = tensor;
      c.parallel.ranks = 2 * tensor;
      c.parallel.deterministic = true;
    };
  };
  EXPECT_NE(refusal(divide(1)).find("needs a power-of-two number of micro-batches per data-parallel rank"),
            std::string::npos);
  RunConfig config = testing::small_config();
  divide(2)(config);
  EXPECT_NO_THROW(config.validate());
}

// Each global batch size must give every rank whole micro-batches.
TEST(RunConfig, RampsMustBeDivisibleByRanks) {
  const auto ramp = [](const std::string& text, int64_t ranks, bool decrease = false) {
    return [=](RunConfig& c) {
      c.model.moe.num_experts = 0;
      c.parallel.ranks = ranks;
      c.train.global_batch_size = 16;
      c.train.rampup_batch_size = text;
      c.train.decrease_batch_size_if_needed = decrease;
    };
  };
  RunConfig config = testing::small_config();
  ramp("4,4,100", 2)(config);
  EXPECT_NO_THROW(config.validate());
  EXPECT_NE(refusal(ramp("4,3,100", 2))
                .find("a global batch of 7 is not divisible by micro_batch_size x data-parallel "
                      "ranks = 2 x 2; choose start and increment as multiples of 4, or set "
                      "decrease_batch_size_if_needed = true"),
            std::string::npos);
  ramp("4,3,100", 2, true)(config);
  EXPECT_NO_THROW(config.validate());
  EXPECT_EQ(config.batch_ramp().sizes(), (std::vector<int64_t>{4, 8, 12, 16}));
  EXPECT_NE(refusal(ramp("2,2,100", 2, true)).find("its first global batch of 2 is less than micro_batch_size x "),
            std::string::npos);
  const auto also = [&](auto change) {
    return refusal([&](RunConfig& c) {
      ramp("4,4,100", 2)(c);
      change(c);
    });
  };
  EXPECT_NE(also([](RunConfig& c) {
              c.parallel.deterministic = true;
            }).find("a global batch of 12: deterministic = true needs a power-of-two number of micro-batches"),
            std::string::npos);
  EXPECT_NE(also([](RunConfig& c) {
              c.model.moe.num_experts = 8;
              c.train.record_routes = "routes";
            }).find("with record_routes: recorded routes are of global batches of one size"),
            std::string::npos);
  EXPECT_NE(also([](RunConfig& c) {
              c.optimizer.lr_warmup_samples = 8;
            }).find("lr_warmup_samples = 8 counts samples, as schedules do with train_samples alone"),
            std::string::npos);
}

TEST(ValidationSets, HaveUniqueNames) {
  using Sets = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(parse_validation_sets("a=x.txt,b-2=folder/y=z.jsonl"), (Sets{{"a", "x.txt"}, {"b-2", "folder/y=z.jsonl"}}));
  EXPECT_TRUE(parse_validation_sets("").empty());
  for (const char* bad : {"x.txt", "=x.txt", "a=", "a b=x.txt"})
    EXPECT_NE(test::message_of<ConfigError>([&] { parse_validation_sets(bad); }).find("is not NAME=FILE"),
              std::string::npos);
  EXPECT_EQ(test::message_of<ConfigError>([] { parse_validation_sets("a=x,a=y"); }),
            "valid_data: there are two sets with the name a");
}

TEST(StepRange, IsReadFromOneOrTwoNumbers) {
  const auto said = [](const char* text) { return test::message_of<ConfigError>([&] { parse_step_range(text); }); };
  EXPECT_EQ(parse_step_range("3:5").first, 3);
  EXPECT_EQ(parse_step_range("3:5").last, 5);
  EXPECT_EQ(parse_step_range("12").first, 12);
  EXPECT_EQ(parse_step_range("12").last, 12);
  for (const char* text : {"", ":", "3:", ":5", "0", "-1", "3-5", "3:5:7", "3:5x", "99999999999999999999"})
    EXPECT_EQ(said(text), cat("--trace-steps ", text, ": give the first and the last step, as 3:5, or one, as 3"));
  EXPECT_EQ(said("5:3"), "--trace-steps 5:3: the first step comes after the last; give 3:5");
}

const fs::path kRecipe = fs::path(WITAN_SOURCE_DIR) / "recipes/default.toml";

TEST(DefaultRecipe, DocumentsTheDefaults) {
  RunConfig defaults;
  const std::string text = read_file(kRecipe), head = text.substr(0, text.find('['));
  EXPECT_EQ(text, head + write_toml(defaults.fields(), true))
      << "the comment at the head of " << kRecipe << " stays; replace the rest by the text on the right";
}

TEST(DefaultRecipe, EqualsTheDefaults) {
  RunConfig read, defaults;
  read_toml(read.fields(), kRecipe.string());
  EXPECT_EQ(write_toml(read.fields()), write_toml(defaults.fields()));
}

}  // namespace
}  // namespace witan
