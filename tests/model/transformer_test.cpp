#include "witan/model/transformer.h"

#include <map>
#include <set>

#include "model/model_support.h"
#include "model/nanogpt_reference.h"
#include "support/message_of.h"
#include "witan/ops/soft_cap.h"

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

double loss_without_tape(Rank& rank, Transformer& model, const MicroBatch& batch) {
  Tape off(rank.stream, Tape::Mode::off);
  return loss_of(off, model, batch).value().data<double>()[0];
}

// A few elements of every parameter, against central differences of the whole model's loss.
void expect_gradients_of_differences(const ModelConfig& config) {
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, config, 5, alone);
  bind_gradients(rank.stream, model);
  const MicroBatch batch = micro_batch(rank.stream, config, 2, 7, 3);
  Tape tape(rank.stream);
  tape.backward({{loss_of(tape, model, batch), {}}});
  constexpr double h = 1e-5;
  double largest = 0;
  for (Parameter* parameter : model.parameters()) {
    const Philox rng(1, Philox::stream_of(parameter->name()));
    const auto gradient = values(parameter->gradient());
    for (uint64_t draw = 0; draw < 4; ++draw) {
      const auto i = rng.below(static_cast<uint64_t>(parameter->elements()), draw);
      double& w = parameter->value().data<double>()[i];
      const double before = w;
      w = before + h;
      const double above = loss_without_tape(rank, model, batch);
      w = before - h;
      const double below = loss_without_tape(rank, model, batch);
      w = before;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * h), 1e-8) << parameter->name() << " [" << i << "]";
      largest = std::max(largest, std::abs(gradient[i]));
    }
  }
  EXPECT_GT(largest, 1e-2) << "the check must have something to see";
}

TEST(Transformer, DenseGradientsMatchDifferences) {
  expect_gradients_of_differences(tiny_config(0));
  expect_gradients_of_differences(other_config(0));
  ModelConfig config = gpt_config();
  expect_gradients_of_differences(config);
  config.recompute_granularity = "full";
  expect_gradients_of_differences(config);
}

TEST(Transformer, MoeGradientsMatchDifferences) {
  ModelConfig config = tiny_config(4);
  expect_gradients_of_differences(config);
  expect_gradients_of_differences(dropping_config(4));
  config.moe.moe_shared_expert_intermediate_size = 10;
  expect_gradients_of_differences(config);
  config.moe.moe_grouped_gemm = false;
  config.moe.moe_router_topk = 1;
  config.moe.moe_router_pre_softmax = true;
  expect_gradients_of_differences(config);
  config = other_config(4);
  config.moe.moe_layer_freq = "[0,1]";
  config.recompute_granularity = "full";
  expect_gradients_of_differences(config);
}

TEST(Transformer, GradientsOfLayersThatDifferMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    ModelConfig config = testing::mixed_config();
    config.recompute_granularity = granularity;
    expect_gradients_of_differences(config);
  }
  ModelConfig config = testing::mixed_config(0);
  config.add_bias_linear = true;
  config.attention.v_head_dim = 4;
  expect_gradients_of_differences(config);
}

TEST(Transformer, GradientsOfNormalisedQueriesAndOfSinksMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    ModelConfig of_widths = testing::full_width_config(), of_heads = testing::sinks_config();
    of_widths.recompute_granularity = of_heads.recompute_granularity = granularity;
    expect_gradients_of_differences(of_widths);
    expect_gradients_of_differences(of_heads);
  }
  ModelConfig config = testing::sinks_config(0);
  config.norm.normalization = "LayerNorm";
  config.norm.norm_bias = true;
  config.norm_placement = "post";
  expect_gradients_of_differences(config);
}

TEST(Transformer, GradientsOfJoinedLayersMatchDifferences) {
  for (const char* granularity : {"none", "selective", "full"})
    for (const int64_t experts : {0, 4}) {
      SCOPED_TRACE(cat(granularity, ", ", experts, " experts"));
      ModelConfig config = testing::nanogpt_config(experts);
      config.recompute_granularity = granularity;
      expect_gradients_of_differences(config);
    }
  // Each by itself, and among norms that have weights.
  for (const auto& change : std::initializer_list<void (*)(ModelConfig&)>{
           [](ModelConfig& c) { c.skip_connections = true; }, [](ModelConfig& c) { c.embedding_residual = true; },
           [](ModelConfig& c) { c.value_embedding_freq = "[0,1]"; }, [](ModelConfig& c) { c.embedding_norm = true; },
           [](ModelConfig& c) { c.attention.no_attention_freq = "[1,0]"; },
           [](ModelConfig& c) { c.logit_soft_cap = 2; }, [](ModelConfig& c) { c.logit_scale = 0.5; },
           [](ModelConfig& c) {
             c.norm.normalization = "LayerNorm";
             c.norm.norm_weight = false;
           }}) {
    ModelConfig config = tiny_config(0);
    change(config);
    expect_gradients_of_differences(config);
  }
}

// Against the formulas, written as plain loops; and word by word, with caches, what a forward of all words gives.
TEST(Transformer, JoinedLayersAreWhatTheFormulasSay) {
  for (const int64_t experts : {0, 4}) {
    Rank rank;
    Alone alone;
    const ModelConfig config = testing::nanogpt_config(experts);
    Transformer model(rank.stream, config, 5, alone);
    testing::NanogptReference reference(config);
    double scalar = 0.3;  // no two factors are alike
    for (Parameter* parameter : model.parameters()) {
      if (parameter->global_shape() == Shape{1}) parameter->value().data<double>()[0] = scalar += 0.17;
      reference.give(parameter->name(), values(parameter->value()));
    }
    const MicroBatch batch = micro_batch(rank.stream, config, 1, 9);
    const auto logits = testing::logits_of(rank.stream, model, batch.input);
    const std::vector<double> expected = reference.logits(batch.input.tokens.span<int32_t>());
    EXPECT_TRUE(close(logits, expected, 1e-12, 1e-12)) << experts << " experts";

    const auto caches = model.make_caches(rank.stream, {1, 9});
    for (int64_t word = 0; word < 9; ++word) {
      const ModelInput one =
          step_input(rank.stream, {{0, word, 1}}, batch.input.tokens.span<int32_t>().subspan(size_t(word), 1));
      const auto decoded = values(model.decode(rank.stream, one, caches));
      const auto begin = logits.begin() + word * config.vocab_size;
      EXPECT_TRUE(close(decoded, {begin, begin + config.vocab_size}, 1e-12, 1e-12)) << word;
    }
  }
}

// 30 sigmoid(x / (7.5 sqrt D)), as modded-nanogpt bounds its logits, is 15 more than the bound used here: no
// probability differs.
TEST(Transformer, ASoftCapOfFifteenIsNanogptsSigmoid) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({40}, DType::f64, "x", 300));
  const auto capped = values(ops::soft_cap(tape, x, 1 / std::sqrt(64.0), 15).value()), in = values(x.value());
  for (size_t i = 0; i < in.size(); ++i)
    EXPECT_NEAR(capped[i] + 15, 30 / (1 + std::exp(-in[i] / (7.5 * std::sqrt(64.0)))), 1e-12);
}

TEST(Transformer, JoinedLayersBeginWithTheirFactors) {
  Rank rank;
  Alone alone;
  ModelConfig config = testing::nanogpt_config(0);
  config.hidden_size = 128;
  const Transformer model(rank.stream, config, 1, alone);
  std::map<std::string, double> factors, deviations;
  for (const Parameter* parameter : model.parameters()) {
    const auto all = values(parameter->value());
    double square = 0;
    for (const double value : all) square += value * value;
    deviations[parameter->name()] = std::sqrt(square / static_cast<double>(all.size()));
    if (parameter->global_shape() != Shape{1}) continue;
    EXPECT_FALSE(parameter->spec().weight_decay);
    factors[parameter->name()] = all.front();
  }
  const std::map<std::string, double> expected = {{"layers.0.residual_scale", 1},
                                                  {"layers.0.embedding_scale", 0},
                                                  {"layers.0.attention.value_scale", .5},
                                                  {"layers.0.attention.embedded_scale", .5},
                                                  {"layers.1.residual_scale", 1},
                                                  {"layers.1.embedding_scale", 0},
                                                  {"layers.1.attention.value_scale", .5},
                                                  {"layers.1.attention.embedded_scale", .5},
                                                  {"layers.2.residual_scale", 1},
                                                  {"layers.2.embedding_scale", 0},
                                                  {"layers.2.skip_scale", 1},
                                                  {"layers.3.residual_scale", 1},
                                                  {"layers.3.embedding_scale", 0},
                                                  {"layers.3.skip_scale", 1},
                                                  {"layers.3.attention.value_scale", .5},
                                                  {"layers.3.attention.embedded_scale", .5}};
  EXPECT_EQ(factors, expected);
  EXPECT_NEAR(deviations.at("embedding.weight"), 1, 0.05);
  EXPECT_NEAR(deviations.at("value_embedding_2.weight"), 1, 0.05);
  EXPECT_NEAR(deviations.at("head.weight"), 0.8 / std::sqrt(128), 0.005);
  EXPECT_NEAR(deviations.at("layers.0.mlp.down_proj.weight"), 0.8 / std::sqrt(12), 0.01);
}

TEST(Transformer, LayersAreWhatTheirSpecsSay) {
  Rank rank;
  Alone alone;
  const ModelConfig config = testing::mixed_config();
  const Transformer model(rank.stream, config, 1, alone);
  std::map<std::string, Shape> shapes;
  for (const Parameter* parameter : model.parameters()) shapes.emplace(parameter->name(), parameter->global_shape());
  EXPECT_EQ(shapes.at("layers.0.mlp.gate_up_proj.weight"), Shape({24, 16}));
  EXPECT_FALSE(shapes.contains("layers.1.mlp.gate_up_proj.weight"));
  for (const char* layer : {"layers.1.", "layers.2."}) {
    EXPECT_EQ(shapes.at(cat(layer, "moe.experts.gate_up_proj")), Shape({4, 16, 16}));
    EXPECT_EQ(shapes.at(cat(layer, "moe.experts.down_proj")), Shape({4, 16, 8}));
    EXPECT_EQ(shapes.at(cat(layer, "attention.q_proj.weight")), Shape({24, 16}));
    EXPECT_EQ(shapes.at(cat(layer, "attention.k_proj.weight")), Shape({12, 16}));
    EXPECT_EQ(shapes.at(cat(layer, "attention.v_proj.weight")), Shape({20, 16}));
    EXPECT_EQ(shapes.at(cat(layer, "attention.o_proj.weight")), Shape({16, 40}));
  }
}

// Through three layers, of which the second has full attention, every earlier token is seen; through windows of three
// tokens alone, two at most are passed in each layer.
TEST(Transformer, AWindowHidesWhatLiesBeforeIt) {
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

TEST(Transformer, NamesAreUniqueAndInOrder) {
  Rank rank;
  Alone alone;
  ModelConfig config = tiny_config(2);
  config.moe.moe_layer_freq = "[1,0]";
  const auto names_of = [&] {
    std::vector<std::string> names;
    const Transformer model(rank.stream, config, 1, alone);
    for (const Parameter* parameter : model.parameters()) names.push_back(parameter->name());
    return names;
  };
  std::vector<std::string> expected = {"embedding.weight",
                                       "layers.0.attention_norm.weight",
                                       "layers.0.attention.q_proj.weight",
                                       "layers.0.attention.k_proj.weight",
                                       "layers.0.attention.v_proj.weight",
                                       "layers.0.attention.o_proj.weight",
                                       "layers.0.mlp_norm.weight",
                                       "layers.0.moe.router.weight",
                                       "layers.0.moe.experts.gate_up_proj",
                                       "layers.0.moe.experts.down_proj",
                                       "layers.1.attention_norm.weight",
                                       "layers.1.attention.q_proj.weight",
                                       "layers.1.attention.k_proj.weight",
                                       "layers.1.attention.v_proj.weight",
                                       "layers.1.attention.o_proj.weight",
                                       "layers.1.mlp_norm.weight",
                                       "layers.1.mlp.gate_up_proj.weight",
                                       "layers.1.mlp.down_proj.weight",
                                       "final_norm.weight"};
  EXPECT_EQ(names_of(), expected);
  config.untie_embeddings_and_output_weights = true;
  expected.push_back("head.weight");
  EXPECT_EQ(names_of(), expected);
  EXPECT_EQ(std::set<std::string>(expected.begin(), expected.end()).size(), expected.size());
  config.moe.moe_shared_expert_intermediate_size = 10;
  const auto experts = std::ranges::find(expected, "layers.0.moe.experts.down_proj");
  expected.insert(experts + 1,
                  {"layers.0.moe.shared_experts.gate_up_proj.weight", "layers.0.moe.shared_experts.down_proj.weight"});
  EXPECT_EQ(names_of(), expected);
}

TEST(Transformer, BiasesAndPositionsHaveNames) {
  Rank rank;
  Alone alone;
  const Transformer model(rank.stream, gpt_config(), 1, alone);
  std::vector<std::string> names, undecayed;
  for (const Parameter* parameter : model.parameters()) {
    names.push_back(parameter->name());
    if (parameter->spec().weight_decay) continue;
    undecayed.push_back(parameter->name());
    if (parameter->name().ends_with("_proj.bias")) {
      EXPECT_EQ(parameter->spec().init.kind, Initialization::Kind::zeros) << parameter->name();
    }
  }
  ASSERT_GT(names.size(), 15u);
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 16),
            (std::vector<std::string>{
                "embedding.weight", "position_embedding.weight", "layers.0.attention_norm.weight",
                "layers.0.attention_norm.bias", "layers.0.attention.q_proj.weight", "layers.0.attention.q_proj.bias",
                "layers.0.attention.k_proj.weight", "layers.0.attention.k_proj.bias",
                "layers.0.attention.v_proj.weight", "layers.0.attention.v_proj.bias",
                "layers.0.attention.o_proj.weight", "layers.0.attention.o_proj.bias", "layers.0.mlp_norm.weight",
                "layers.0.mlp_norm.bias", "layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.bias"}));
  for (const std::string& name : names)
    EXPECT_EQ(std::ranges::find(undecayed, name) != undecayed.end(),
              name.ends_with(".bias") || name.find("norm") != std::string::npos)
        << name;
}

// Two equal tokens differ by their position alone, and a position that starts anew is the first again.
TEST(Transformer, LearnedPositionsAreThoseOfTheBatch) {
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

TEST(Transformer, DropsInTrainingAlone) {
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

TEST(Transformer, ProjectionsIntoTheResidualStreamStartSmaller) {
  Rank rank;
  Alone alone;
  ModelConfig config = tiny_config(2);
  config.num_layers = 8;
  const Transformer model(rank.stream, config, 1, alone);
  for (const Parameter* parameter : model.parameters()) {
    if (parameter->spec().init.kind != Initialization::Kind::normal) continue;
    const bool output = parameter->name().find("o_proj") != std::string::npos ||
                        parameter->name().find("down_proj") != std::string::npos;
    EXPECT_DOUBLE_EQ(parameter->spec().init.std, output ? 0.3 / 4 : 0.3) << parameter->name();
  }
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

  // The gradient of the shared weight is the sum of both uses.
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

// Rows of zeros that no step changes: neither losses nor gradients know them, and other values begin as without them.
TEST(Transformer, PaddedEntriesTakeNoPart) {
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

TEST(Transformer, DocumentsDoNotSeeEachOtherWhereIdsKeepThemApart) {
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

TEST(Transformer, TellsLossesAndCountsOfItsMoeBlocksAlone) {
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

TEST(Transformer, OneTokenAndOddSizesWork) {
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

TEST(Transformer, BadModelsAndInputsAreRefused) {
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
  const auto caches = model.make_caches(rank.stream, {2, 3});
  EXPECT_EQ(test::message_of<ShapeError>([&] { model.decode(rank.stream, batch.input, caches); }),
            "transformer: the tokens of a step of generation must be [1, T] with a row of the cache for each");
  batch.input.tokens.data<int32_t>()[4] = 23;
  EXPECT_THROW(testing::logits_of(rank.stream, model, batch.input), DataError);
}

TEST(Transformer, TorchInitialisationOfExpertsKnowsTheirInputs) {
  Rank rank;
  Alone alone;
  ModelConfig config = other_config(4);
  config.init_method = "torch";
  ASSERT_NE(config.hidden_size, config.mlp.ffn_hidden_size);
  Transformer model(rank.stream, config, 77, alone);
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->spec().expert) continue;
    EXPECT_EQ(parameter->spec().init.fan_in, parameter->spec().shape[2]) << parameter->name();
  }
}

TEST(Transformer, TorchInitialisationDrawsParametersAsPyTorchModulesDo) {
  Rank rank;
  Alone alone;
  ModelConfig config = other_config(0);
  config.init_method = "torch";
  config.add_bias_linear = true;
  Transformer model(rank.stream, config, 77, alone);
  std::map<std::string, std::vector<double>> parameters;
  for (const Parameter* parameter : model.parameters()) parameters[parameter->name()] = values(parameter->value());
  TorchRandom random(77);
  const auto drawn = [&](const std::string& name, int64_t fan_in) {
    std::vector<double>& actual = parameters.at(name);
    std::vector<double> expected(actual.size());
    const auto take = [&](int64_t first, std::span<const float> from) {
      std::ranges::copy(from, expected.begin() + first);
    };
    const auto n = static_cast<int64_t>(expected.size());
    if (fan_in == 0)
      random.normal(n, take);
    else
      random.uniform(n, 1 / std::sqrt(static_cast<double>(fan_in)), take);
    EXPECT_EQ(actual, expected) << name;
  };
  drawn("embedding.weight", 0);
  for (const std::string block : {"layers.0.", "layers.1."}) {
    const auto linear = [&](const std::string& name, int64_t fan_in) {
      drawn(block + name + ".weight", fan_in);
      drawn(block + name + ".bias", fan_in);
    };
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) linear(cat("attention.", name), 16);
    linear("mlp.up_proj", 16);
    linear("mlp.down_proj", 12);
  }
  drawn("head.weight", 16);
  EXPECT_EQ(parameters.at("final_norm.weight"), std::vector<double>(16, 1.0));
}

TEST(Transformer, CapacityIsForTrainingAndNotForGeneration) {
  Rank rank;
  const ModelConfig dropless = tiny_config(8);
  ModelConfig bounded = dropless;
  bounded.moe.moe_expert_capacity_factor = 0.3;
  Alone alone;
  Transformer one(rank.stream, dropless, 1, alone), other(rank.stream, bounded, 1, alone);
  const MicroBatch batch = micro_batch(rank.stream, dropless, 1, 12);
  EXPECT_NE(testing::logits_of(rank.stream, one, batch.input), testing::logits_of(rank.stream, other, batch.input));
  const auto decoded = [&](Transformer& model) {
    const auto caches = model.make_caches(rank.stream, {1, 12});
    return values(
        model.decode(rank.stream, step_input(rank.stream, {{0, 0, 12}}, batch.input.tokens.span<int32_t>()), caches));
  };
  EXPECT_EQ(decoded(one), decoded(other));
}

}  // namespace
}  // namespace witan
