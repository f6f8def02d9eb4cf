// The lists of public Megatron-LM runs (recipes/megatron) mean here what they mean there.
#include "megatron_support.h"
#include "support/message_of.h"

namespace witan::test {
namespace {

// What all runs but Mixtral's share: their lists, with Megatron-LM's defaults beneath, written out by hand.
RunConfig expected(const std::string& name) {
  RunConfig config;
  config.train.run = name;
  config.train.train_iters = 40000;
  config.train.micro_batch_size = 8;
  config.train.global_batch_size = 64;
  config.train.eval_interval = 1000;
  config.train.eval_iters = 10;
  config.train.log_interval = 20;
  config.parallel.sequence_parallel = true;
  config.log.log_throughput = config.log.log_params_norm = true;
  config.log.log_num_zeros_in_grad = config.log.log_progress = true;
  config.model.num_layers = 24;
  config.model.hidden_size = 512;
  config.model.vocab_size = 128256;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.make_vocab_size_divisible_by = 128;
  config.model.dtype = "bfloat16";
  config.model.attention.num_attention_heads = 4;
  config.model.attention.num_query_groups = 1;
  config.model.attention.max_position_embeddings = 2048;
  config.model.attention.rotary_base = 100000;
  config.model.mlp.ffn_hidden_size = 1792;
  config.model.moe.num_experts = 0;
  config.model.moe.moe_aux_loss_coeff = 0;
  config.data.seq_length = 2048;
  config.optimizer.lr = 6e-4;
  config.optimizer.min_lr = 6e-5;
  config.optimizer.lr_warmup_iters = 1000;
  config.optimizer.lr_decay_iters = 38000;
  config.optimizer.adam_beta2 = 0.999;
  config.parallel.expert_model_parallel_size = 1;
  config.parallel.use_distributed_optimizer = true;
  return config;
}

RunConfig expected_moe(const std::string& name, int64_t divided) {
  RunConfig config = expected(name);
  config.model.moe.num_experts = 64;
  config.model.moe.moe_router_topk = 1;
  config.model.moe.moe_router_pre_softmax = true;
  config.model.moe.moe_aux_loss_coeff = 1e-2;
  config.parallel.expert_model_parallel_size = divided;
  return config;
}

RunConfig expected_mixtral() {
  RunConfig config;
  config.train.run = "mixtral";
  config.train.train_iters = 500000;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 128;
  config.train.eval_interval = 1000;
  config.train.eval_iters = 10;
  config.train.log_interval = 1;
  config.train.save_interval = 10000;
  config.load.no_load_optim = config.load.no_load_rng = true;
  config.model.num_layers = 32;
  config.model.hidden_size = 4096;
  config.model.vocab_size = 32000;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.make_vocab_size_divisible_by = 128;
  config.model.init_method_std = 0.01;
  config.model.dtype = "bfloat16";
  config.model.attention.num_attention_heads = 32;
  config.model.attention.num_query_groups = 8;
  config.model.attention.max_position_embeddings = 32768;
  config.model.mlp.ffn_hidden_size = 14336;
  config.model.moe.num_experts = 8;
  config.data.seq_length = 2048;
  config.optimizer.lr = 1e-4;
  config.optimizer.min_lr = 1e-5;
  config.optimizer.lr_warmup_iters = 500;
  config.optimizer.lr_decay_iters = 320000;
  config.optimizer.adam_beta2 = 0.999;
  config.parallel.expert_model_parallel_size = 4;
  config.parallel.use_distributed_optimizer = config.parallel.sequence_parallel = true;
  return config;
}

std::string toml(RunConfig config) {
  return write_toml(config.fields());
}

TEST(MegatronLists, MeanWhatTheyMeanInMegatronLm) {
  EXPECT_EQ(toml(read_words({list("dense")}).config), toml(expected("dense")));
  EXPECT_EQ(toml(read_words({list("dmoe_ep4")}).config), toml(expected_moe("dmoe_ep4", 4)));
  RunConfig dmoe_ep8 = expected_moe("dmoe_ep8", 8);
  dmoe_ep8.train.micro_batch_size = 4;
  EXPECT_EQ(toml(read_words({list("dmoe_ep8")}).config), toml(dmoe_ep8));
  RunConfig moe_ep4 = expected_moe("moe_ep4", 4);
  moe_ep4.model.moe.moe_expert_capacity_factor = 1;
  moe_ep4.model.moe.moe_pad_expert_input_to_capacity = true;
  EXPECT_EQ(toml(read_words({list("moe_ep4")}).config), toml(moe_ep4));
  EXPECT_EQ(toml(read_words({list("mixtral"), "--tensor-model-parallel-size", "1"}).config), toml(expected_mixtral()));
}

TEST(MegatronLists, MeanTheSameWrittenOutAsFlags) {
  for (const char* name : {"dense", "dmoe_ep4", "dmoe_ep8", "moe_ep4"}) {
    std::vector<std::string> files, words;
    for (const cli::Word& word : cli::expand_response_files({list(name)}, files)) words.push_back(word.text);
    words.insert(words.end(), {"--run", name});
    EXPECT_EQ(toml(read_words(words).config), toml(read_words({list(name)}).config)) << name;
  }
}

TEST(MegatronLists, SayWhatIsTakenHow) {
  const std::string said = read_words({list("dense")}).said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  EXPECT_TRUE(contains(said, "Megatron-LM's defaults apply (@")) << said;
  EXPECT_TRUE(contains(said, "adam_beta2 = 0.999")) << said;
  EXPECT_TRUE(contains(said, "accepted without effect: ")) << said;
  EXPECT_TRUE(contains(said, "--overlap-grad-reduce, --overlap-param-gather (an overlap)")) << said;
}

TEST(MegatronLists, Plan) {
  TempFolder own;
  const auto plan = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> args = {"plan", list(name), "--runs-folder", own.path().string()};
    args.insert(args.end(), more.begin(), more.end());
    return witan(args);
  };
  const Said dense = plan("dense", {"--ranks", "8"});
  EXPECT_TRUE(contains(dense.out, "213,148,160")) << dense.out << dense.err;
  EXPECT_TRUE(contains(dense.out, "1524.73 MB")) << dense.out;
  for (const char* name : {"dmoe_ep4", "dmoe_ep8", "moe_ep4"}) {
    const Said moe = plan(name, {});
    EXPECT_TRUE(contains(moe.out, "4,375,732,736")) << name << moe.err;
  }
  const Said four = plan("dmoe_ep4", {"--ranks", "8"});
  EXPECT_TRUE(contains(four.out, "31292.23 MB") && contains(four.out, "13153.68 MB")) << four.out;
}

// Its four tensor ranks divide each expert too, so that four experts' ranks are sixteen.
TEST(MegatronLists, TensorRanksAreNotLeftForExperts) {
  for (const char* command : {"plan", "train"})
    expect_refusal({command, list("mixtral"), "--ranks", "4"}, 3,
                   {"expert_model_parallel_size = 4: more ranks than the 1 there are"});
}

TEST(MegatronLists, ExpertsNeedTheirRanks) {
  expect_refusal({"plan", list("dmoe_ep4"), "--ranks", "2"}, 3,
                 {"expert_model_parallel_size = 4: more ranks than the 2 there are"});
}

// Reduced in depth and width by flags after the list.
class ReducedTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ReducedTest, Trains) {
  TempFolder own;
  for (int i = 0; i < 20; ++i) write_text(own / ("text/" + std::to_string(i) + ".txt"), some_text(40));
  std::vector<std::string> args = {"train",
                                   list(GetParam()),
                                   "--data",
                                   own / "text",
                                   "--runs-folder",
                                   own / "runs",
                                   "--num-layers",
                                   "2",
                                   "--hidden-size",
                                   "16",
                                   "--ffn-hidden-size",
                                   "16",
                                   "--seq-length",
                                   "16",
                                   "--vocab-size",
                                   "1000",
                                   "--train-iters",
                                   "3",
                                   "--eval-iters",
                                   "1",
                                   "--sample-tokens",
                                   "0",
                                   "--micro-batch-size",
                                   "1",
                                   "--global-batch-size",
                                   "8",
                                   "--lr-decay-iters",
                                   "3",
                                   "--lr-warmup-iters",
                                   "1",
                                   "--tokenizer-vocab-size",
                                   "300",
                                   "--held-out-fraction",
                                   "0.05",
                                   "--threads",
                                   "1",
                                   "--log-interval",
                                   "1",
                                   "--ranks",
                                   "4"};
  const Said said = witan(args);
  EXPECT_EQ(said.code, 0) << said.err;
  const std::string config = read_text(own / "runs" / GetParam() / "config.toml");
  EXPECT_TRUE(contains(config, "num_layers = 2\n") && contains(config, "vocab_size = 1000\n")) << config;
  EXPECT_TRUE(contains(read_text(own / "runs" / GetParam() / "metrics.jsonl"), "\"step\":3")) << said.err;

  const Said more = witan({"train", list(GetParam()), "--runs-folder", own / "runs"});
  EXPECT_EQ(more.code, 3) << "the list alone is another model: " << more.out;
  EXPECT_TRUE(contains(more.err, "num_layers = 24 (was 2)")) << more.err;
}
INSTANTIATE_TEST_SUITE_P(Lists, ReducedTest, ::testing::Values("dense", "dmoe_ep4", "moe_ep4"),
                         [](const auto& list) { return std::string(list.param); });

}  // namespace
}  // namespace witan::test
