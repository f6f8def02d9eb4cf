#include "support/message_of.h"
#include "support/model_variants.h"
#include "support/module.h"
#include "support/thread_world.h"
#include "witan/generate/generation_batch.h"
#include "witan/nn/attention/attention.h"
#include "witan/nn/lora.h"

namespace witan {
namespace {

using testing::Alone;
using testing::Rank;
using testing::ThreadRank;
using testing::values;
using Tokens = std::vector<int32_t>;

const Tokens kPrompt = {3, 17, 0, 40, 3};

// Weights so large that rounding cannot change the next token.
ModelConfig small_config(int64_t experts, const std::string& dtype = "float64") {
  ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 24;
  config.vocab_size = 50;
  config.init_method_std = 0.5;
  config.dtype = dtype;
  config.mlp.ffn_hidden_size = 20;
  config.moe.num_experts = experts;
  return config;
}

// A dense layer, then MoE layers, with windows of four tokens in all but the second; values are wider than queries and
// keys.
ModelConfig mixed_config(const std::string& dtype = "float64") {
  ModelConfig config = small_config(4, dtype);
  config.moe.moe_layer_freq = "[0,1,1]";
  config.moe.moe_ffn_hidden_size = 12;
  config.attention.window_size = "3,0";
  config.attention.window_attn_skip_freq = "2";
  config.attention.v_head_dim = 9;
  return config;
}

ModelConfig latent_config() {
  ModelConfig config = small_config(4);
  testing::add_latent_attention(config, {.q_rank = 7, .kv_rank = 10, .head = 6, .rotated_head = 4, .value_head = 5});
  testing::add_stretched_positions(config);
  return config;
}

GenerateOptions options_of(int64_t max_tokens, double temperature = 0, uint64_t seed = 0) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.sampler.temperature = temperature;
  options.sampler.seed = seed;
  return options;
}

// Logits [T, V] of the whole text in one pass.
std::vector<double> full_logits(Rank& rank, Transformer& model, const Tokens& text, Tape::Mode mode = Tape::Mode::off) {
  const auto S = static_cast<int64_t>(text.size());
  Tokens positions;
  for (int32_t s = 0; s < S; ++s) positions.push_back(s);
  Tape tape(rank.stream, mode);
  return values(model.forward(tape, {rank.tensor<int32_t>({1, S}, text), {rank.tensor<int32_t>({1, S}, positions), {}}})
                    .logits.value());
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Continues the prompt greedily and compares each token with the largest logit of the whole preceding text.
Tokens argmax_text(Rank& rank, Transformer& model, int64_t count) {
  Tokens text = kPrompt;
  for (const int32_t token : generate(rank.stream, model, kPrompt, options_of(count))) {
    const auto logits = full_logits(rank, model, text);
    const auto last = logits.end() - model.config().vocab_size;
    EXPECT_EQ(token, std::max_element(last, logits.end()) - last) << "after " << text.size() << " tokens";
    text.push_back(token);
  }
  return text;
}

TEST(Generate, GreedyTextIsTheArgmaxOfRecomputedLogitsAtEveryStep) {
  for (const int64_t experts : {0, 4})
    for (const bool interleaved : {false, true}) {
      Rank rank;
      Alone alone;
      ModelConfig config = small_config(experts);
      config.attention.rotary_interleaved = interleaved;
      Transformer model(rank.stream, config, 8, alone);
      Tokens text = kPrompt;
      for (const int32_t token : generate(rank.stream, model, kPrompt, options_of(24))) {
        const auto logits = full_logits(rank, model, text);
        const auto last = logits.end() - config.vocab_size;
        EXPECT_EQ(token, std::max_element(last, logits.end()) - last) << "after " << text.size() << " tokens";
        text.push_back(token);
      }
      EXPECT_EQ(text.size(), kPrompt.size() + 24);
      EXPECT_NE(text, joined(kPrompt, Tokens(24, text.back()))) << "a text of one token proves little";
    }
}

void expect_text_of_recomputed_logits(const ModelConfig& config) {
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, config, 8, alone);
  Tokens text = kPrompt;
  for (const int32_t token : generate(rank.stream, model, kPrompt, options_of(20))) {
    const auto logits = full_logits(rank, model, text);
    const auto last = logits.end() - config.vocab_size;
    EXPECT_EQ(token, std::max_element(last, logits.end()) - last) << "after " << text.size() << " tokens";
    text.push_back(token);
  }
}

TEST(Generate, TextWithQkNormAndSinksIsTheArgmaxOfRecomputedLogits) {
  ModelConfig of_widths = small_config(4), of_heads = mixed_config();
  of_widths.attention.qk_layernorm = of_widths.attention.qk_layernorm_full_width = true;
  of_widths.attention.clip_qkv = 1.5;
  of_widths.norm_placement = "post";
  of_heads.attention.qk_layernorm = of_heads.attention.add_qkv_bias = true;
  of_heads.attention.softmax_type = "learnable";
  expect_text_of_recomputed_logits(of_widths);
  expect_text_of_recomputed_logits(of_heads);
}

// The text is much longer than the states of layers with a window.
TEST(Generate, TextOfMixedLayersIsTheArgmaxOfRecomputedLogits) {
  Rank rank;
  Alone alone;
  const ModelConfig config = mixed_config();
  Transformer model(rank.stream, config, 8, alone);
  const auto states = model.make_states(rank.stream, {1, 40});
  const auto slots = [&](size_t layer) { return dynamic_cast<const KvCache&>(*states[layer]).keys.size(1); };
  EXPECT_EQ(slots(0), 8);
  EXPECT_EQ(slots(1), 40);
  EXPECT_EQ(argmax_text(rank, model, 30).size(), kPrompt.size() + 30);
}

TEST(Generate, TextOfLatentAttentionIsTheArgmaxOfRecomputedLogits) {
  Rank rank;
  Alone alone;
  const ModelConfig config = latent_config();
  Transformer model(rank.stream, config, 8, alone);
  EXPECT_EQ(argmax_text(rank, model, 20).size(), kPrompt.size() + 20);
}

// DeepSeek-V4's layers, each half of a block between parallel streams.
TEST(Generate, TextOfCompressedAttentionIsTheArgmaxOfRecomputedLogits) {
  for (const bool streams : {false, true}) {
    ModelConfig config = small_config(4);
    config.num_layers = 3;
    testing::add_compressed_attention(config);
    if (streams) testing::add_residual_streams(config);
    expect_text_of_recomputed_logits(config);
  }
}

TEST(Generate, TextOfResidualStreamsIsTheArgmaxOfRecomputedLogits) {
  ModelConfig config = small_config(4);
  testing::add_residual_streams(config);
  expect_text_of_recomputed_logits(config);
}

TEST(Decode, LogitsMatchThoseOfTheWholeText) {
  for (const auto& [dtype, mixed, tolerance] : {std::tuple{"float64", false, 1e-11},
                                                {"float32", false, 1e-4},
                                                {"float64", true, 1e-11},
                                                {"float32", true, 1e-4}}) {
    Rank rank;
    Alone alone;
    const ModelConfig config = mixed ? mixed_config(dtype) : small_config(4, dtype);
    Transformer model(rank.stream, config, 8, alone);
    const Tokens text = {3, 17, 0, 40, 3, 9, 9, 21, 49};
    const auto expected = full_logits(rank, model, text);
    const auto states = model.make_states(rank.stream, {1, static_cast<int64_t>(text.size())});
    int64_t past = 0;
    for (const int64_t step : {4, 1, 3, 1}) {
      const std::span ids(text.data() + past, static_cast<size_t>(step));
      const Tensor logits = model.decode(rank.stream, step_input(rank.stream, {{0, past, step}}, ids), states);
      past += step;
      const auto end = expected.begin() + past * config.vocab_size;
      EXPECT_EQ(logits.shape(), Shape({1, config.vocab_size}));
      EXPECT_TRUE(testing::close(values(logits), {end - config.vocab_size, end}, tolerance, tolerance))
          << dtype << ", " << past << " tokens";
    }
  }
}

// An adapter's B is initially 0: without other weights it would change nothing.
void fill_adapters(Transformer& model) {
  for (Parameter* parameter : model.parameters()) {
    if (!parameter->name().ends_with(kLoraB)) continue;
    const Tensor& b = parameter->value();
    dispatch_floating(b.dtype(), [&]<class T>() {
      for (int64_t i = 0; auto& value : b.span<T>()) value = static_cast<T>(0.4 * std::sin(static_cast<double>(i++)));
    });
  }
}

// Compares the training forward with generation on one text, whose last tokens are decoded one by one.
void expect_decoded_as_trained(const ModelConfig& config, const Tokens& text, double tolerance) {
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, config, 8, alone);
  const auto base = full_logits(rank, model, text);
  fill_adapters(model);
  const auto tuned = full_logits(rank, model, text, Tape::Mode::record);
  EXPECT_FALSE(testing::close(tuned, base, 0.05, 0.05)) << "adapters must change the logits";
  const auto states = model.make_states(rank.stream, {1, static_cast<int64_t>(text.size())});
  for (int64_t past = 0; const int64_t step : {4, 1, 3, 1}) {
    const std::span ids(text.data() + past, static_cast<size_t>(step));
    const Tensor last = model.decode(rank.stream, step_input(rank.stream, {{0, past, step}}, ids), states);
    past += step;
    const auto end = tuned.begin() + past * config.vocab_size;
    EXPECT_TRUE(testing::close(values(last), {end - config.vocab_size, end}, tolerance, tolerance)) << past;
  }
}

// Every matrix has an adapter, in both kinds of attention, dense layers and experts.
TEST(Decode, AdaptersMatchTheTrainingForward) {
  const auto with_qk_norm = [](const std::string& dtype) {
    ModelConfig config = mixed_config(dtype);
    config.attention.qk_layernorm = true;
    return config;
  };
  const auto latent = [](const std::string& dtype) {
    ModelConfig config = latent_config();
    config.moe.moe_layer_freq = "[0,1,1]";
    config.dtype = dtype;
    return config;
  };
  const std::vector<std::string> shared = {"o_proj", "gate_proj,up_proj", "down_proj", ""};
  std::vector<std::string> of_heads = {"q_proj", "k_proj", "v_proj"},
                           of_latents = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"};
  of_heads.insert(of_heads.end(), shared.begin(), shared.end());
  of_latents.insert(of_latents.end(), shared.begin(), shared.end());
  for (const auto& [dtype, tolerance] :
       {std::pair<std::string, double>{"float64", 1e-11}, {"float32", 1e-3}, {"bfloat16", 0.3}})
    for (const auto& [mixer, config, targets] : {std::tuple{"grouped-query", small_config(0, dtype), of_heads},
                                                 {"windows and experts", mixed_config(dtype), of_heads},
                                                 {"normalised queries", with_qk_norm(dtype), of_heads},
                                                 {"latent", latent(dtype), of_latents}})
      for (const std::string& target : targets) {
        SCOPED_TRACE(cat(mixer, ", ", dtype, ", adapters of ", target.empty() ? "all" : target));
        ModelConfig adapted = config;
        adapted.lora_rank = 3;
        adapted.lora_target_modules = target;
        expect_decoded_as_trained(adapted, {3, 17, 0, 40, 3, 9, 9, 21, 49}, tolerance);
      }
}

class Generation : public ::testing::Test {
 protected:
  Tokens text(const GenerateOptions& options, const Tokens& prompt = kPrompt) {
    return generate(rank_.stream, model_, prompt, options);
  }

  Rank rank_;
  Alone alone_;
  Transformer model_{rank_.stream, small_config(4), 8, alone_};
};

TEST_F(Generation, SamplesAreReproducible) {
  const Tokens once = text(options_of(20, 5, 1));
  EXPECT_EQ(once, text(options_of(20, 5, 1)));
  EXPECT_NE(once, text(options_of(20, 5, 2)));
  EXPECT_NE(once, text(options_of(20)));
}

TEST_F(Generation, ContinuesATextIdentically) {
  for (const double temperature : {0.0, 5.0}) {
    const Tokens all = text(options_of(20, temperature, 1)), first(all.begin(), all.begin() + 7);
    EXPECT_EQ(joined(first, text(options_of(13, temperature, 1), joined(kPrompt, first))), all);
  }
}

TEST_F(Generation, CallsBackForEveryToken) {
  Tokens heard;
  const Tokens all =
      generate(rank_.stream, model_, kPrompt, options_of(6), [&](int32_t token) { heard.push_back(token); });
  EXPECT_EQ(heard, all);
}

TEST_F(Generation, StopsBeforeTheEndOfText) {
  const Tokens all = text(options_of(20, 5, 3));
  for (const size_t stop : {size_t{0}, size_t{4}, size_t{19}}) {
    GenerateOptions options = options_of(20, 5, 3);
    options.end_of_text = all[stop];
    EXPECT_EQ(text(options), Tokens(all.begin(), std::find(all.begin(), all.end(), all[stop])));
  }
}

TEST_F(Generation, RespectsMaxTokens) {
  for (const int64_t most : {0, 1, 9}) EXPECT_EQ(static_cast<int64_t>(text(options_of(most)).size()), most);
}

TEST_F(Generation, FreesItsMemory) {
  const int64_t before = rank_.stream.arena().live();
  text(options_of(10));
  EXPECT_EQ(rank_.stream.arena().live(), before);
}

TEST_F(Generation, RefusesBadPromptsAndOptions) {
  EXPECT_EQ(test::message_of<DataError>([&] { text(options_of(4), {}); }), "generate: the prompt has no tokens");
  for (const int32_t id : {50, -1}) EXPECT_THROW(text(options_of(4), {1, id}), DataError);
  EXPECT_THROW(text(options_of(4, -1)), ConfigError);
}

ModelConfig learned_config() {
  ModelConfig config = small_config(0);
  config.add_bias_linear = true;
  config.hidden_dropout = config.attention.attention_dropout = 0.5;  // only used in training
  config.attention.position_embedding_type = "learned_absolute";
  config.attention.max_position_embeddings = 20;
  return config;
}

TEST(GenerateWithLearnedPositions, IsTheArgmaxOfRecomputedLogitsUpToTheLastPosition) {
  Rank rank;
  Alone alone;
  const ModelConfig config = learned_config();
  Transformer model(rank.stream, config, 8, alone);
  EXPECT_EQ(argmax_text(rank, model, 15).size(), 20u);
}

TEST(GenerateWithLearnedPositions, RefusesFurtherPositions) {
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, learned_config(), 8, alone);
  const auto refusal = [&](const Tokens& prompt, int64_t most) {
    return test::message_of<ConfigError>([&] { generate(rank.stream, model, prompt, options_of(most)); });
  };
  EXPECT_EQ(refusal(kPrompt, 16),
            "generate: a prompt of 5 tokens and max_tokens = 16 do not fit into max_position_embeddings = 20, the "
            "number of positions that the model has learned: set max_tokens to at most 15");
  EXPECT_EQ(refusal(Tokens(20, 1), 1),
            "generate: a prompt of 20 tokens and max_tokens = 1 do not fit into max_position_embeddings = 20, the "
            "number of positions that the model has learned: shorten the prompt");
  EXPECT_EQ(tokens_that_fit(model, 5, 100), 15);
  EXPECT_EQ(tokens_that_fit(model, 5, 3), 3);
  EXPECT_EQ(tokens_that_fit(model, 30, 3), 0);
  EXPECT_EQ(tokens_that_fit(Transformer(rank.stream, small_config(0), 8, alone), 30, 3), 3)
      << "rotary embeddings have no last position";
}

// The last entries of a padded vocabulary belong to no token, and are never chosen however likely they are.
TEST_F(Generation, NeverSamplesPaddedEntries) {
  bool padded = false;
  for (const double temperature : {0.0, 5.0}) {
    GenerateOptions options = options_of(40, temperature, 1);
    for (const int32_t token : text(options)) padded |= token >= 45;
    options.vocab_size = 45;
    for (const int32_t token : text(options)) EXPECT_LT(token, 45);
  }
  EXPECT_TRUE(padded) << "the check must have something to see";
}

// Entries that only make the vocabulary divisible are never chosen either; their logits are 0, perhaps more than those
// of any token.
TEST(Generate, NeverSamplesVocabularyPadding) {
  Rank rank;
  Alone alone;
  ModelConfig config = small_config(4);
  config.make_vocab_size_divisible_by = 128;
  Transformer padded(rank.stream, config, 8, alone), words(rank.stream, small_config(4), 8, alone);
  for (const double temperature : {0.0, 100.0}) {
    const GenerateOptions options = options_of(40, temperature, 1);
    EXPECT_EQ(generate(rank.stream, padded, kPrompt, options), generate(rank.stream, words, kPrompt, options));
  }
}

TEST(GenerateOnMeta, NeedsTheMemoryOfTheLongestText) {
  const ModelConfig config = small_config(4, "float32");
  Rank rank(2);
  Alone alone;
  Transformer model(rank.stream, config, 8, alone);
  const size_t length = generate(rank.stream, model, kPrompt, options_of(12)).size();
  ThreadPool pool(2);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  Transformer planned(meta, config, 8, alone);
  GenerateOptions options = options_of(12);
  options.end_of_text = 0;  // any id will do
  EXPECT_EQ(generate(meta, planned, kPrompt, options).size(), length);
  EXPECT_EQ(meta.arena().high_water(), rank.stream.arena().high_water());
}

TEST(GenerateOnRanks, AllRanksReturnTheTokensOfOneRank) {
  const ModelConfig config = small_config(4);
  for (const double temperature : {0.0, 5.0}) {
    Rank rank;
    Alone alone;
    Transformer model(rank.stream, config, 8, alone);
    const Tokens expected = generate(rank.stream, model, kPrompt, options_of(16, temperature, 2));
    for (const int ranks : {2, 4})
      testing::on_ranks(ranks, [&](ThreadRank& each) {
        const auto group = each.everyone("expert");
        Transformer part(each.stream, config, 8, *group);
        EXPECT_EQ(generate(each.stream, part, kPrompt, options_of(16, temperature, 2)), expected)
            << "rank " << each.rank << " of " << ranks;
      });
  }
}

}  // namespace
}  // namespace witan
