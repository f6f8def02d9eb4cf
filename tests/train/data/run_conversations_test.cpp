// Runs fine-tuned on conversations, and additional validation sets.
#include "witan/train/data/run_conversations.h"

#include <cmath>
#include <fstream>

#include "train/rollouts/rollout_runs.h"
#include "witan/data/batches/batch.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/prepare/prepare.h"
#include "witan/train/data/run_data.h"
#include "witan/train/data/validation_sets.h"
#include "witan/train/loop/interval_samples.h"

namespace witan {
namespace {

using test::message_of;

class Conversing : public testing::RolloutRuns {
 protected:
  Conversing() {
    std::ofstream rows(folder_ / "chat.jsonl");
    for (int i = 0; i < 60; ++i) rows << conversation("say " + std::to_string(i), i % 2 ? "odd" : "even");
    rows << "broken\n" << conversation("a long one", std::string(80, 'x'));
    std::ofstream(folder_ / "odd.jsonl") << conversation("say 61", "odd") << conversation("say 63", "odd");
    std::ofstream(folder_ / "even.jsonl") << conversation("say 62", "even");
  }

  RunConfig config(const std::string& run) const {
    RunConfig config = supervised(run);
    config.model.dtype = "float64";
    config.data.packing = "greedy";
    config.data.valid_data = "odd=" + (folder_ / "odd.jsonl").string() + ",even=" + (folder_ / "even.jsonl").string();
    config.data.seq_length = 64;
    config.train.micro_batch_size = 2;
    config.train.global_batch_size = 4;
    config.train.train_iters = config.optimizer.lr_decay_iters = 8;
    config.train.eval_interval = config.train.save_interval = 4;
    config.train.eval_iters = 8;
    config.optimizer.lr_warmup_iters = 3;
    config.optimizer.lr = 1e-2;
    config.parallel = {2, 2, 1};
    return config;
  }

  Metrics metrics(const std::string& run) const { return read_metrics(folder_ / run / "metrics.jsonl"); }
};

// The sample is an answer and not a continuation of text, on which the model was not trained.
TEST_F(Conversing, SamplesContinueAConversation) {
  RunConfig given = config("sampled");
  given.train.sample_tokens = 8;
  const Tokenizer tokenizer = Tokenizer::load(given.data.tokenizer);
  const RunConfig resolved = *resolve(given, {.vocabulary = tokenizer.vocab_size()});
  EXPECT_EQ(resolved.train.sample_prompt, "Hello! What can you do?");
  const SamplePrompts prompts = sample_prompts(resolved, tokenizer);
  EXPECT_EQ(prompts.last, "<|im_start|>user\nHello! What can you do?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompts.ends, std::vector{*tokenizer.token_id("<|im_end|>")});
  EXPECT_EQ(encode_sample_prompt(tokenizer, prompts.last, prompts.chat).front(), *tokenizer.token_id("<|im_start|>"));
  given.data.sft = false;
  given.data.valid_data.clear();
  EXPECT_EQ(sample_prompts(given, tokenizer).last, "The ");
  given.data.sft = true;
  const std::string picky = (folder_ / "picky.jinja").string();
  std::ofstream(picky) << "{{ raise_exception('a system message first') }}";
  given.data.chat_template = picky;
  EXPECT_EQ(sample_prompts(given, tokenizer).last, "The ") << "the template refuses a single question";
}

// A validation set of shards has the same samples as one of the rows from which they were made.
TEST_F(Conversing, AValidationSetMayBeShards) {
  const RunConfig given = config("shards");
  const auto tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(given.data.tokenizer));
  const auto format = find_conversation_format(given, *tokenizer);
  PrepareOptions options;
  options.corpus.conversations = format;
  options.measure_split = false;
  prepare_dataset(find_sources({folder_ / "odd.jsonl"}).files, text_encoder(tokenizer), folder_ / "shards", options);
  const ValidationSet rows = read_validation_set("odd", {folder_ / "odd.jsonl"}, given.data, *tokenizer, format);
  for (const char* name : {"shards", "shards.bin", "shards.idx"}) {
    const ValidationSet shards = read_validation_set("odd", {folder_ / name}, given.data, *tokenizer, format);
    ASSERT_EQ(shards.samples->per_epoch(), rows.samples->per_epoch()) << name;
    for (int64_t sample = 0; sample < rows.samples->per_epoch(); ++sample) {
      const Batch a = make_batch(*rows.samples, sample, 1, batch_options(given.data, *tokenizer)),
                  b = make_batch(*shards.samples, sample, 1, batch_options(given.data, *tokenizer));
      EXPECT_EQ(a.tokens, b.tokens) << name << " " << sample;
      EXPECT_EQ(a.targets, b.targets) << name << " " << sample;
      EXPECT_EQ(a.loss_mask, b.loss_mask) << name << " " << sample;
    }
  }
  RunConfig text = given;
  text.data.sft = false;
  EXPECT_NE(message_of<ConfigError>([&] {
              read_validation_set("odd", {folder_ / "shards"}, text.data, *tokenizer, nullptr);
            }).find("conversations; set sft = true"),
            std::string::npos);
}

TEST_F(Conversing, TrainsOnAnswersAndEvaluatesEachSet) {
  const RunResult result = run(config("a"));
  EXPECT_EQ(result.end, RunEnd::finished);
  const Metrics found = metrics("a");
  ASSERT_EQ(found.steps.size(), 8u);
  EXPECT_LT(found.steps.back().loss, found.steps.front().loss);
  EXPECT_EQ(found.evals.size(), 2u);
  ASSERT_EQ(found.set_evals.size(), 2u);
  for (const char* set : {"odd", "even"}) {
    ASSERT_EQ(found.set_evals.at(set).size(), 2u) << set;
    EXPECT_TRUE(std::isfinite(found.set_evals.at(set).back().loss));
  }
  EXPECT_NE(found.set_evals.at("odd").back().loss, found.set_evals.at("even").back().loss);
  EXPECT_NE(read_file(folder_ / "a/train.log").find("validation loss on odd"), std::string::npos);
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_NE(warnings_[0].find("1 of 62 rows is unusable and skipped"), std::string::npos) << warnings_[0];
  EXPECT_NE(warnings_[1].find("longer than seq_length + 1 = 65 tokens"), std::string::npos) << warnings_[1];
  const auto kept = find_chat_template(folder_ / "a");
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->chat.source(), testing::kRolloutTemplate);
}

TEST_F(Conversing, ResumesBitwise) {
  run(config("whole"));
  RunConfig first = config("parts");
  first.train.train_iters = 4;
  run(first);
  fs::remove(folder_ / "chat.jsonl");  // the run has its own copy of the tokens
  EXPECT_EQ(run(config("parts")).resumed_from, 4);
  const auto a = metrics("whole").steps, b = metrics("parts").steps;
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].loss, b[i].loss) << i;
    EXPECT_EQ(a[i].grad_norm, b[i].grad_norm) << i;
  }
}

// Packed conversations with their positions and masks give the same losses in all kinds of layouts.
TEST_F(Conversing, LayoutsAgree) {
  RunConfig one = config("one");
  one.parallel = {1, 1, 1};
  run(one);
  RunConfig context = config("context");
  context.parallel = {2, 1, 1};
  context.parallel.context_parallel_size = 2;
  run(context);
  RunConfig pipeline = config("pipeline");
  pipeline.parallel = {2, 1, 1};
  pipeline.parallel.pipeline_model_parallel_size = 2;
  run(pipeline);
  run(config("two"));
  const Metrics expected = metrics("one");
  for (const char* other : {"two", "context", "pipeline"}) {
    const Metrics found = metrics(other);
    for (size_t i = 0; i < expected.steps.size(); ++i)
      EXPECT_NEAR(found.steps[i].loss, expected.steps[i].loss, 1e-9) << other << ", step " << i;
    for (const char* set : {"odd", "even"})
      EXPECT_NEAR(found.set_evals.at(set).back().loss, expected.set_evals.at(set).back().loss, 1e-9) << other;
  }
}

TEST_F(Conversing, ErrorsNameWhatIsMissing) {
  fs::remove(folder_ / "hf/chat_template.jinja");
  EXPECT_NE(message_of<ConfigError>([&] { run(config("no-template")); }).find("--chat-template FILE"),
            std::string::npos);
  RunConfig own = config("own");
  write_file_atomically(folder_ / "own.jinja", testing::kRolloutTemplate);
  own.data.chat_template = (folder_ / "own.jinja").string();
  EXPECT_EQ(run(own).end, RunEnd::finished);
  RunConfig text = config("text");
  text.data.sft = false;
  text.data.data.clear();
  text.data.data_path = (folder_ / "own/data/tokens").string();
  EXPECT_NE(message_of<ConfigError>([&] { run(text); }).find("has tokens of conversations; set sft = true"),
            std::string::npos);

  DataConfig data;
  data.sft = true;
  EXPECT_NE(message_of<ConfigError>([&] { data.validate(); }).find("sft = true needs tokenizer"), std::string::npos);
  data.tokenizer = "t";
  data.eod_mask_loss = true;
  EXPECT_NE(message_of<ConfigError>([&] { data.validate(); }).find("eod_mask_loss"), std::string::npos);
}

}  // namespace
}  // namespace witan
