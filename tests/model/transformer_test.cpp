#include "witan/model/transformer.h"

#include "model/model_support.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::Alone;
using testing::bind_gradients;
using testing::close;
using testing::dropping_config;
using testing::gpt_config;
using testing::loss_of;
using testing::micro_batch;
using testing::MicroBatch;
using testing::other_config;
using testing::Rank;
using testing::tiny_config;
using testing::values;

// Every earlier token is visible through three layers of which the second has full attention. If all layers have
// windows of three tokens, each layer reaches back two tokens at most.
TEST(Transformer, WindowsHideEarlierTokens) {
  Rank rank;
  Alone alone;
  ModelConfig config = testing::mixed_config();
  MicroBatch batch = micro_batch(rank.stream, config, 1, 12);
  const auto first_to_last = [&] {
    Transformer model(rank.stream, config, 3, alone);
    int32_t& first = batch.input.tokens.data<int32_t>()[0];
    const auto logits = testing::logits_of(rank.stream, model, batch.input);
    first = (first + 1) % static_cast<int32_t>(config.vocab_size);
    const auto changed = testing::logits_of(rank.stream, model, batch.input);
    std::string seen;
    for (size_t token = 0; token < 12; ++token) {
      const auto begin = token * static_cast<size_t>(config.vocab_size);
      seen += std::equal(logits.begin() + static_cast<int64_t>(begin),
                         logits.begin() + static_cast<int64_t>(begin) + config.vocab_size,
                         changed.begin() + static_cast<int64_t>(begin))
                  ? '-'
                  : 'x';
    }
    return seen;
  };
  EXPECT_EQ(first_to_last(), "xxxxxxxxxxxx");
  config.attention.window_attn_skip_freq = "none";
  EXPECT_EQ(first_to_last(), "xxxxxxx-----");
}

// Two equal tokens differ only by their positions, and a position that restarts is the first again.
TEST(Transformer, UsesTheBatchsPositions) {
  Rank rank;
  Alone alone;
  ModelConfig config = gpt_config();
  config.num_layers = 1;
  Transformer model(rank.stream, config, 5, alone);
  MicroBatch batch = micro_batch(rank.stream, config, 1, 4, 2);  // two documents
  batch.input.randomness = {};
  const Tensor tokens = batch.input.tokens, positions = batch.input.where.positions;
  std::ranges::copy(std::vector<int32_t>{3, 9, 3, 9}, tokens.data<int32_t>());
  const auto halves = [&](std::vector<int32_t> at) {
    std::ranges::copy(at, positions.data<int32_t>());
    const auto logits = testing::logits_of(rank.stream, model, batch.input);
    const auto middle = logits.begin() + 2 * config.vocab_size;
    return std::pair(std::vector<double>(logits.begin(), middle), std::vector<double>(middle, logits.end()));
  };
  const auto [reset_first, reset_second] = halves({0, 1, 0, 1});
  EXPECT_TRUE(close(reset_first, reset_second, 1e-13, 1e-13));
  const auto [first, second] = halves({0, 1, 2, 3});
  EXPECT_EQ(first, reset_first);
  EXPECT_FALSE(close(second, reset_second, 1e-3, 0));
  const MicroBatch longer = micro_batch(rank.stream, config, 1, 42);
  EXPECT_EQ(test::message_of<ShapeError>([&] { testing::logits_of(rank.stream, model, longer.input); }),
            "transformer: 42 tokens per sequence, but max_position_embeddings = 41");
}

TEST(Transformer, DropsOnlyInTraining) {
  for (const ModelConfig& config : {gpt_config(), dropping_config(4)}) {
    Rank rank;
    Alone alone;
    Transformer model(rank.stream, config, 5, alone);
    ModelConfig without = config;
    without.hidden_dropout = without.attention.attention_dropout = 0;
    Transformer plain(rank.stream, without, 5, alone);
    MicroBatch batch = micro_batch(rank.stream, config, 2, 6);
    const auto logits = [&](Transformer& of, const Randomness& randomness) {
      batch.input.randomness = randomness;
      return testing::logits_of(rank.stream, of, batch.input);
    };
    const Randomness seven = testing::randomness_of(rank.stream, 7);
    const auto expected = logits(plain, {});
    EXPECT_EQ(logits(model, {}), expected) << "evaluation";
    EXPECT_EQ(logits(plain, seven), expected);
    const auto dropped = logits(model, seven);
    EXPECT_FALSE(close(dropped, expected, 1e-3, 0));
    EXPECT_EQ(logits(model, seven), dropped);
    for (const Randomness& other : {testing::randomness_of(rank.stream, 8), testing::randomness_of(rank.stream, 7, 3),
                                    Randomness{12, seven.step, 2}})
      EXPECT_FALSE(close(logits(model, other), dropped, 1e-3, 0));
  }
}

TEST(Transformer, DropsInEveryPlace) {
  Rank rank;
  Alone alone;
  ModelConfig config = tiny_config(0);
  config.num_layers = 1;
  const MicroBatch batch = micro_batch(rank.stream, config, 1, 6);
  const auto logits = [&](double hidden, double attention) {
    config.hidden_dropout = hidden, config.attention.attention_dropout = attention;
    Transformer model(rank.stream, config, 5, alone);
    return testing::logits_of(rank.stream, model, batch.input);
  };
  const auto none = logits(0, 0), all = logits(1 - 1e-9, 0);
  EXPECT_FALSE(close(logits(0, 0.5), none, 1e-3, 0));
  // Zeros remain only where the embedding, attention's output and the MLP's output were all dropped.
  EXPECT_EQ(all, std::vector<double>(all.size(), 0.0));
}

TEST(Transformer, ATiedHeadIsTheEmbedding) {
  Rank rank;
  Alone alone;
  ModelConfig config = tiny_config(0);
  config.untie_embeddings_and_output_weights = true;
  Transformer untied(rank.stream, config, 1, alone);
  config.untie_embeddings_and_output_weights = false;
  Transformer tied(rank.stream, config, 1, alone);
  const MicroBatch batch = micro_batch(rank.stream, config, 1, 5);
  EXPECT_NE(testing::logits_of(rank.stream, tied, batch.input), testing::logits_of(rank.stream, untied, batch.input));
  const Tensor embedding = untied.parameters().front()->value(), head = untied.parameters().back()->value();
  std::ranges::copy(embedding.span<double>(), head.data<double>());
  EXPECT_EQ(testing::logits_of(rank.stream, tied, batch.input), testing::logits_of(rank.stream, untied, batch.input));

  // The gradient of the shared weight is the sum over both uses.
  bind_gradients(rank.stream, tied);
  bind_gradients(rank.stream, untied);
  for (Transformer* model : {&tied, &untied}) {
    Tape tape(rank.stream);
    tape.backward({{loss_of(tape, *model, batch), {}}});
  }
  auto sum = values(untied.parameters().front()->gradient());
  const auto of_head = values(untied.parameters().back()->gradient());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += of_head[i];
  EXPECT_TRUE(close(values(tied.parameters().front()->gradient()), sum, 1e-15, 1e-13));
}

// Padding rows are zeros that no step changes: losses and gradients do not depend on them, and other values are
// initialised as without them.
TEST(Transformer, IgnoresPaddingRows) {
  for (const char* method : {"normal", "torch"})
    for (const bool untied : {false, true}) {
      SCOPED_TRACE(cat(method, untied ? ", untied" : ", tied"));
      Rank rank;
      Alone alone;
      ModelConfig config = tiny_config(4);
      config.init_method = method;
      config.untie_embeddings_and_output_weights = untied;
      Transformer bare(rank.stream, config, 1, alone);
      config.make_vocab_size_divisible_by = 2 * config.vocab_size - 5;
      Transformer padded(rank.stream, config, 1, alone);
      const MicroBatch batch = micro_batch(rank.stream, config, 1, 5);
      std::vector<double> losses;
      for (Transformer* model : {&bare, &padded}) {
        bind_gradients(rank.stream, *model);
        Tape tape(rank.stream);
        const Var loss = loss_of(tape, *model, batch);
        losses.push_back(values(loss.value())[0]);
        tape.backward({{loss, {}}});
      }
      EXPECT_EQ(losses[0], losses[1]);
      int tables = 0;
      for (size_t i = 0; i < bare.parameters().size(); ++i) {
        Parameter &a = *bare.parameters()[i], &b = *padded.parameters()[i];
        const int64_t elements = a.elements();
        tables += b.elements() > elements;
        for (const auto& [short_one, long_one] :
             {std::pair{values(a.value()), values(b.value())}, {values(a.gradient()), values(b.gradient())}}) {
          const std::vector<double> first(long_one.begin(), long_one.begin() + elements);
          EXPECT_TRUE(close(first, short_one, 1e-15, 1e-13)) << a.name();
          EXPECT_EQ(std::vector<double>(long_one.begin() + elements, long_one.end()),
                    std::vector<double>(long_one.size() - first.size()))
              << a.name();
        }
      }
      EXPECT_EQ(tables, untied ? 2 : 1);
    }
}

TEST(Transformer, DocumentsDoNotSeeEachOther) {
  for (const ModelConfig& config : {tiny_config(0), tiny_config(4), other_config(0)}) {
    Rank rank;
    Alone alone;
    Transformer model(rank.stream, config, 5, alone);
    const int64_t S = 11, second = 5, V = config.vocab_size;
    const auto logits_of_second = [&](const std::string& first_document, bool apart) {
      const MicroBatch batch = micro_batch(rank.stream, config, 1, S, apart ? second : 0);
      testing::fill_with_tokens(batch.input.tokens.reshape({S}).narrow(0, 0, S - second), V, first_document);
      const auto logits = testing::logits_of(rank.stream, model, batch.input);
      return std::vector<double>(logits.begin() + (S - second) * V, logits.end());
    };
    EXPECT_EQ(logits_of_second("one text", true), logits_of_second("another text", true));
    EXPECT_FALSE(close(logits_of_second("one text", false), logits_of_second("another text", false), 1e-3, 0));
  }
}

TEST(Transformer, NoTokenSeesALaterOne) {
  Rank rank;
  Alone alone;
  const ModelConfig config = tiny_config(4);
  Transformer model(rank.stream, config, 5, alone);
  const MicroBatch batch = micro_batch(rank.stream, config, 1, 8);
  const auto before = testing::logits_of(rank.stream, model, batch.input);
  int32_t& last = batch.input.tokens.data<int32_t>()[7];
  last = (last + 1) % 23;
  const auto after = testing::logits_of(rank.stream, model, batch.input);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 7 * 23, after.begin()));
  EXPECT_NE(before, after);
}

TEST(Transformer, RecordsLossesAndCountsOfMoeBlocks) {
  Rank rank;
  Alone alone;
  ModelConfig config = tiny_config(4);
  config.num_layers = 5;
  for (const auto& [pattern, blocks] : {std::pair{"1", size_t{5}}, {"2", size_t{3}}, {"[0,0,0,1,0]", size_t{1}}})
    for (const std::string recompute : {"none", "selective", "full"}) {
      config.moe.moe_layer_freq = pattern;
      config.recompute_granularity = recompute;
      Transformer model(rank.stream, config, 1, alone);
      Tape tape(rank.stream);
      const ModelOutput out = model.forward(tape, micro_batch(rank.stream, config, 2, 6).input);
      EXPECT_EQ(out.logits.shape(), Shape({12, 23}));
      ASSERT_EQ(out.routers.size(), blocks);
      for (const RouterRecord& router : out.routers) {
        for (const char* loss : {kBalanceLoss, kZLoss}) EXPECT_EQ(router.loss(loss).shape(), Shape({1}));
        const auto counts = router.value(kExpertCounts).to_vector<int64_t>();
        EXPECT_EQ(counts[0] + counts[1] + counts[2] + counts[3], 12 * 2);
      }
    }
}

TEST(Transformer, AcceptsOneTokenAndOddSizes) {
  for (const int64_t experts : {0, 3})
    for (const auto& [B, S] : {std::pair<int64_t, int64_t>{1, 1}, {3, 1}, {1, 5}}) {
      Rank rank;
      Alone alone;
      const ModelConfig config = tiny_config(experts);
      Transformer model(rank.stream, config, 1, alone);
      bind_gradients(rank.stream, model);
      Tape tape(rank.stream);
      const Var loss = loss_of(tape, model, micro_batch(rank.stream, config, B, S));
      tape.backward({{loss, {}}});
      EXPECT_TRUE(std::isfinite(loss.value().data<double>()[0]));
      for (const auto& gradient : testing::gradients_of(model))
        EXPECT_TRUE(std::ranges::all_of(gradient, [](double g) { return std::isfinite(g); }));
    }
}

TEST(Transformer, RefusesBadModelsAndInputs) {
  Rank rank;
  ModelConfig config = tiny_config(6);
  MetaGroup four(4, 0, "expert"), eight(8, 0, "expert");
  const auto build = [&](Group& group) {
    return test::message_of<ConfigError>([&] { Transformer(rank.stream, config, 1, group); });
  };
  EXPECT_EQ(build(four), "num_experts = 6 is not divisible by 4 expert-parallel ranks");
  EXPECT_EQ(build(eight), "num_experts = 6 is not divisible by 8 expert-parallel ranks");
  config.vocab_size = 0;
  EXPECT_EQ(build(four), "vocab_size is not set, and there is no tokenizer to take it from");

  config.vocab_size = 23;
  Alone alone;
  Transformer model(rank.stream, config, 1, alone);
  MicroBatch batch = micro_batch(rank.stream, config, 2, 3);
  const auto states = model.make_states(rank.stream, {2, 3});
  EXPECT_EQ(test::message_of<ShapeError>([&] { model.decode(rank.stream, batch.input, states); }),
            "transformer: the tokens of a generation step must be [1, T], each with a row of the cache");
  batch.input.tokens.data<int32_t>()[4] = 23;
  EXPECT_THROW(testing::logits_of(rank.stream, model, batch.input), DataError);
}

TEST(Transformer, CapacityAppliesOnlyToTraining) {
  Rank rank;
  const ModelConfig dropless = tiny_config(8);
  ModelConfig bounded = dropless;
  bounded.moe.moe_expert_capacity_factor = 0.3;
  Alone alone;
  Transformer one(rank.stream, dropless, 1, alone), other(rank.stream, bounded, 1, alone);
  const MicroBatch batch = micro_batch(rank.stream, dropless, 1, 12);
  EXPECT_NE(testing::logits_of(rank.stream, one, batch.input), testing::logits_of(rank.stream, other, batch.input));
  const auto decoded = [&](Transformer& model) {
    const auto states = model.make_states(rank.stream, {1, 12});
    return values(
        model.decode(rank.stream, step_input(rank.stream, {{0, 0, 12}}, batch.input.tokens.span<int32_t>()), states));
  };
  EXPECT_EQ(decoded(one), decoded(other));
}

}  // namespace
}  // namespace witan
