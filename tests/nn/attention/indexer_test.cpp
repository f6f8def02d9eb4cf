// Latent attention with an indexer: its parameters, choices of keys, loss, documents, generation, and layers that share
// a choice.
#include "witan/nn/attention/indexer.h"

#include <array>
#include <numeric>

#include "nn/attention/attention_support.h"
#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/module.h"
#include "witan/comm/threads/threads.h"
#include "witan/nn/attention/latent.h"
#include "witan/nn/attention/sparse_config.h"

namespace witan {
namespace {

using testing::attention_builder;
using testing::close;
using testing::decoded;
using testing::positions_of;
using testing::Rank;
using testing::values;

constexpr int64_t kIndexedWidth = 16;

// Specs of layers with sparse attention, after changes to its configuration.
template <class Change>
std::vector<LatentSpec> indexed_layers(const Change& change, int64_t num_layers = 1) {
  AttentionConfig attention;
  attention.multi_latent_attention = attention.rotary_interleaved = true;
  attention.num_attention_heads = 4;
  attention.q_lora_rank = 7;
  attention.kv_lora_rank = 10;
  attention.latent_qk_head_dim = 6;
  attention.qk_pos_emb_head_dim = 4;
  attention.v_head_dim = 5;
  SparseAttentionConfig sparse;
  sparse.dsa_indexer_n_heads = 3;
  sparse.dsa_indexer_head_dim = 6;
  sparse.dsa_indexer_topk = 3;
  sparse.dsa_indexer_loss_coeff = 0.5;
  change(sparse);
  attention.validate(kIndexedWidth, num_layers);
  sparse.validate(attention, num_layers);
  std::vector<MixerSpec> layers = attention.layers(kIndexedWidth, num_layers);
  sparse.apply(layers);
  std::vector<LatentSpec> specs;
  for (const MixerSpec& layer : layers) specs.push_back(std::get<LatentSpec>(layer));
  return specs;
}

LatentSpec indexed_spec() {
  return indexed_layers([](SparseAttentionConfig&) {}).front();
}

Positions packed_documents(Rank& rank, const std::vector<int64_t>& lengths) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < lengths.size(); ++i)
    ids.insert(ids.end(), static_cast<size_t>(lengths[i]), static_cast<int32_t>(i));
  const auto S = static_cast<int64_t>(ids.size());
  Positions where = positions_of(rank, 1, S);
  where.sequence_ids = rank.tensor<int32_t>({1, S}, ids);
  return where;
}

std::vector<double> output_of(Rank& rank, LatentAttention& layer, const Tensor& x, const Positions& where) {
  Tape off(rank.stream, Tape::Mode::off);
  return values(layer.forward(off, off.constant(x), where).value());
}

TEST(Indexer, ParametersHaveHuggingFacesNames) {
  Rank rank;
  const LatentSpec spec = indexed_spec();
  LatentAttention layer(attention_builder(rank, DType::f32), spec, kIndexedWidth);
  std::vector<std::pair<std::string, Shape>> found;
  int64_t elements = 0;
  for (const Parameter* parameter : layer.parameters()) {
    elements += parameter->global_shape().elements();
    if (is_of_indexer(parameter->name())) found.emplace_back(parameter->name(), parameter->global_shape());
  }
  EXPECT_EQ(found, (decltype(found){{"attention.indexer.wq_b.weight", {18, 7}},
                                    {"attention.indexer.wk.weight", {6, kIndexedWidth}},
                                    {"attention.indexer.k_norm.weight", {6}},
                                    {"attention.indexer.k_norm.bias", {6}},
                                    {"attention.indexer.weights_proj.weight", {3, kIndexedWidth}}}));
  const MixerCounts counts = spec.parameters({.width = kIndexedWidth});
  EXPECT_EQ(counts.weights + counts.vectors, elements);
}

TEST(Indexer, AsManyKeysAsTokensAreLatentAttention) {
  Rank rank;
  LatentSpec dense = indexed_spec();
  dense.indexer = {};
  LatentAttention plain(attention_builder(rank, DType::f64), dense, kIndexedWidth);
  const Tensor x = rank.normal({2, 9, kIndexedWidth}, DType::f64, "x");
  const auto expected = output_of(rank, plain, x, positions_of(rank, 2, 9));
  const auto with = [&](int64_t topk) {
    LatentAttention layer(attention_builder(rank, DType::f64),
                          indexed_layers([&](SparseAttentionConfig& c) { c.dsa_indexer_topk = topk; }).front(),
                          kIndexedWidth);
    return output_of(rank, layer, x, positions_of(rank, 2, 9));
  };
  EXPECT_TRUE(close(with(9), expected, 1e-12, 1e-12));
  EXPECT_TRUE(close(with(100), expected, 1e-12, 1e-12));
  EXPECT_FALSE(close(with(8), expected, 1e-6, 0)) << "the last token sees one key less";
}

TEST(Indexer, GradientsOfTheLayersInputMatchDifferences) {
  Rank rank;
  LatentAttention layer(attention_builder(rank, DType::f64), indexed_spec(), kIndexedWidth);
  testing::bind_gradients(rank.stream, layer);
  const Positions where = packed_documents(rank, {3, 1, 6});
  testing::gradcheck(
      rank, "sparse latent attention",
      [&](Tape& tape, const std::vector<Var>& in) { return std::vector{layer.forward(tape, in[0], where)}; },
      {rank.normal({1, 10, kIndexedWidth}, DType::f64, "x")});
}

struct Learned {
  double loss = 0;
  std::vector<double> gradients;  // of the indexer's parameters
};

// The loss of a layer, by itself the root of a backward that reaches the indexer alone.
Learned learned(Rank& rank, LatentAttention& layer, const Tensor& x, const Positions& where) {
  testing::bind_gradients(rank.stream, layer);
  Tape tape(rank.stream);
  const Var in = tape.input(x);
  layer.forward(tape, in, where);
  Learned found;
  if (tape.losses().size() != 1) return found;
  const LossRecord& loss = tape.losses().front();
  EXPECT_EQ(loss.name, "indexer loss");
  EXPECT_EQ(loss.coefficient, 0.5);
  tape.backward({{loss.value, {}}});
  EXPECT_FALSE(tape.gradient(in).defined()) << "the indexer's input is detached";
  found.loss = values(loss.value.value())[0];
  for (Parameter* parameter : layer.parameters()) {
    EXPECT_EQ(parameter->gradient_written, is_of_indexer(parameter->name())) << parameter->name();
    if (!parameter->gradient_written) continue;
    const auto gradient = values(parameter->gradient());
    found.gradients.insert(found.gradients.end(), gradient.begin(), gradient.end());
  }
  return found;
}

// The loss of a changed parameter. Choices stay what they are where the difference is small enough.
TEST(Indexer, GradientsOfItsParametersMatchDifferences) {
  Rank rank;
  const Tensor x = rank.normal({1, 10, kIndexedWidth}, DType::f64, "x");
  const Positions where = packed_documents(rank, {3, 1, 6});
  struct Stage {
    bool sparse, warm_up;
  };
  for (const auto& [sparse, warm_up] : {Stage{false, false}, Stage{true, false}, Stage{false, true}}) {
    SCOPED_TRACE(cat("sparse loss ", sparse, ", warm-up ", warm_up));
    const LatentSpec spec = indexed_layers([sparse = sparse, warm_up = warm_up](SparseAttentionConfig& c) {
                              c.dsa_indexer_use_sparse_loss = sparse;
                              c.dsa_dense_warmup = warm_up;
                            }).front();
    LatentAttention layer(attention_builder(rank, DType::f64), spec, kIndexedWidth);
    const Learned found = learned(rank, layer, x, where);
    ASSERT_GT(found.loss, 0);
    size_t at = 0;
    for (Parameter* parameter : layer.parameters()) {
      if (!is_of_indexer(parameter->name())) continue;
      constexpr double kStep = 1e-6;
      const auto value = parameter->value().span<double>();
      for (size_t i = 0; i < value.size(); ++i, ++at) {
        if (i % 5 != 0) continue;
        const double before = value[i];
        value[i] = before + kStep;
        const double above = learned(rank, layer, x, where).loss;
        value[i] = before - kStep;
        const double below = learned(rank, layer, x, where).loss;
        value[i] = before;
        EXPECT_NEAR(found.gradients[at], (above - below) / (2 * kStep), 1e-7) << parameter->name() << " " << i;
      }
    }
    EXPECT_EQ(at, found.gradients.size());
  }
}

TEST(Indexer, WithoutACoefficientThereIsNoLoss) {
  Rank rank;
  const LatentSpec spec = indexed_layers([](SparseAttentionConfig& c) { c.dsa_indexer_loss_coeff = 0; }).front();
  LatentAttention layer(attention_builder(rank, DType::f64), spec, kIndexedWidth);
  Tape tape(rank.stream);
  layer.forward(tape, tape.input(rank.normal({1, 4, kIndexedWidth}, DType::f64, "x")), positions_of(rank, 1, 4));
  EXPECT_TRUE(tape.losses().empty());
  EXPECT_TRUE(layer.losses().empty());
}

TEST(Indexer, WarmUpIsLatentAttentionToTheBit) {
  Rank rank;
  LatentSpec dense = indexed_spec();
  dense.indexer = {};
  const LatentSpec warm_up = indexed_layers([](SparseAttentionConfig& c) { c.dsa_dense_warmup = true; }).front();
  LatentAttention plain(attention_builder(rank, DType::f32), dense, kIndexedWidth),
      warming(attention_builder(rank, DType::f32), warm_up, kIndexedWidth);
  const Tensor x = rank.normal({1, 10, kIndexedWidth}, DType::f32, "x");
  const Positions where = packed_documents(rank, {4, 6});
  EXPECT_EQ(output_of(rank, warming, x, where), output_of(rank, plain, x, where));
  EXPECT_EQ(decoded(rank, warming, x, {7, 1, 2}), decoded(rank, plain, x, {7, 1, 2}));
}

TEST(Indexer, PackingChangesNoBitOfADocument) {
  Rank rank;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LatentAttention layer(attention_builder(rank, dtype), indexed_spec(), kIndexedWidth);
    const std::vector<int64_t> lengths = {3, 1, 20, 2};
    const Tensor x = rank.normal({1, 26, kIndexedWidth}, dtype, "x");
    Positions where = packed_documents(rank, lengths);
    int64_t begin = 0;
    for (const int64_t count : lengths)
      for (int64_t i = 0; i < count; ++i) where.positions.data<int32_t>()[begin++] = static_cast<int32_t>(i);
    Tape off(rank.stream, Tape::Mode::off);
    const Tensor together = layer.forward(off, off.constant(x), where).value();
    begin = 0;
    for (const int64_t count : lengths) {
      EXPECT_EQ(output_of(rank, layer, x.narrow(1, begin, count), positions_of(rank, 1, count)),
                values(together.narrow(1, begin, count)))
          << dtype << ", from token " << begin;
      begin += count;
    }
  }
}

// A micro-batch that is padded has the loss of its tokens alone.
TEST(Indexer, PaddingHasNoLoss) {
  Rank rank;
  LatentAttention layer(attention_builder(rank, DType::f64), indexed_spec(), kIndexedWidth);
  const Tensor x = rank.normal({1, 10, kIndexedWidth}, DType::f64, "x");
  Positions padded = packed_documents(rank, {7, 3});
  for (int64_t i = 7; i < 10; ++i) padded.sequence_ids.data<int32_t>()[i] = -1;
  const Learned alone = learned(rank, layer, x.narrow(1, 0, 7), positions_of(rank, 1, 7)),
                with = learned(rank, layer, x, padded);
  EXPECT_NEAR(with.loss, alone.loss, 1e-14);
  EXPECT_TRUE(close(with.gradients, alone.gradients, 1e-13, 1e-13));
}

TEST(Indexer, DecodingEqualsTheFullForward) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    LatentAttention layer(attention_builder(rank, dtype), indexed_spec(), kIndexedWidth);
    const Tensor x = rank.normal({2, 12, kIndexedWidth}, dtype, "x");
    const auto full = output_of(rank, layer, x, positions_of(rank, 2, 12));
    for (const auto& steps : std::vector<std::vector<int64_t>>{{12}, {7, 1, 1, 1, 1, 1}, {2, 5, 5}})
      EXPECT_EQ(decoded(rank, layer, x, steps), full) << dtype << ", " << steps.size() << " steps";
  }
}

TEST(Indexer, ItsKeysArePartOfTheState) {
  Rank rank;
  const LatentSpec spec = indexed_spec();
  LatentAttention layer(attention_builder(rank, DType::f32), spec, kIndexedWidth);
  const auto state = layer.make_state(rank.stream, {3, 5}, DType::f32);
  EXPECT_EQ(state->bytes(), 3 * spec.state_bytes({3, 5}, DType::f32).of_row());
  EXPECT_EQ(state->bytes(), 3 * 5 * (4 * (10 + 5) + 6) * 4);
  Tape off(rank.stream, Tape::Mode::off);
  const auto step = [&](int64_t row, int64_t past, const char* tokens, int64_t count) {
    Positions where = testing::step_positions(rank, 1, count, past);
    where.cached.runs[0].row = row;
    std::ranges::fill(where.cached.rows.span<int32_t>(), static_cast<int32_t>(row));
    return values(
        layer.decode(off, off.constant(rank.normal({1, count, kIndexedWidth}, DType::f32, tokens)), where, *state)
            .value());
  };
  step(0, 0, "prompt", 4);
  state->copy_row(rank.stream, 0, 2);
  EXPECT_EQ(step(2, 4, "a", 1), step(0, 4, "a", 1));
  EXPECT_EQ(test::message_of<ShapeError>([&] { step(0, 5, "a", 1); }), "attention: 6 positions in a cache of 5");
}

// The second layer has no indexer: it attends to the keys that the first one chose, in training and in generation.
TEST(Indexer, ALayerSharesAnEarlierChoice) {
  Rank rank;
  const auto specs = indexed_layers([](SparseAttentionConfig& c) { c.dsa_indexer_freq = "[1,0,1]"; }, 3);
  EXPECT_TRUE(specs[0].indexer.lends);
  EXPECT_FALSE(specs[1].indexer.own());
  EXPECT_EQ(specs[1].describe(), "latent attention to 3 keys that layer 0 chooses");
  EXPECT_FALSE(specs[2].indexer.lends);
  LatentAttention first(attention_builder(rank, DType::f64), specs[0], kIndexedWidth),
      second(attention_builder(rank, DType::f64), specs[1], kIndexedWidth);
  EXPECT_TRUE(std::ranges::none_of(second.parameters(), [](const Parameter* p) { return is_of_indexer(p->name()); }));
  const Tensor x = rank.normal({1, 8, kIndexedWidth}, DType::f64, "x");
  Positions where = positions_of(rank, 1, 8);
  EXPECT_EQ(test::message_of<ShapeError>([&] { output_of(rank, second, x, where); }),
            "attention: layer 0, whose indexer chooses the keys, has not run before");
  where.chosen = std::make_shared<ChosenKeys>();
  const auto expected = output_of(rank, first, x, where);
  EXPECT_EQ(output_of(rank, second, x, where), expected) << "equal weights, and the same choice";

  const auto states =
      std::array{first.make_state(rank.stream, {1, 8}, DType::f64), second.make_state(rank.stream, {1, 8}, DType::f64)};
  EXPECT_LT(states[1]->bytes(), states[0]->bytes());
  Positions step = testing::step_positions(rank, 1, 8, 0);
  step.chosen = std::make_shared<ChosenKeys>();
  Tape off(rank.stream, Tape::Mode::off);
  for (LatentAttention* const layer : {&first, &second})
    EXPECT_EQ(values(layer->decode(off, off.constant(x), step, *states[layer == &second ? 1 : 0]).value()), expected);
}

// Two ranks divide attention's heads, and its tokens if they lie in the residual stream in parts; both have the loss
// and the indexer's gradients of one rank, whole or as summands.
TEST(Indexer, TensorRanksShareTheIndexer) {
  constexpr int64_t kTokens = 8;
  Rank alone;
  LatentAttention layer(attention_builder(alone, DType::f64), indexed_spec(), kIndexedWidth);
  const Tensor x = alone.normal({1, kTokens, kIndexedWidth}, DType::f64, "x");
  const Learned one = learned(alone, layer, x, positions_of(alone, 1, kTokens));
  const auto y = output_of(alone, layer, x, positions_of(alone, 1, kTokens));
  for (const bool by_tokens : {false, true}) {
    std::array<Learned, 2> parts;
    std::array<std::vector<double>, 2> outputs;
    ThreadWorld world(2);
    world.run([&](int number) {
      Rank rank(1);
      const auto group = world.group(number, {0, 1}, "tensor");
      Builder builder = attention_builder(rank, DType::f64);
      builder.tensor.emplace(TensorAxis{*group, by_tokens ? Placement::shard(1) : Placement::replicate()});
      LatentAttention part(builder, indexed_spec(), kIndexedWidth);
      Tensor own = rank.normal({1, kTokens, kIndexedWidth}, DType::f64, "x");
      if (by_tokens) own = own.narrow(1, number * kTokens / 2, kTokens / 2);
      const auto at = static_cast<size_t>(number);
      parts[at] = learned(rank, part, own, positions_of(rank, 1, kTokens));
      outputs[at] = output_of(rank, part, own, positions_of(rank, 1, kTokens));
    });
    if (by_tokens) {
      outputs[0].insert(outputs[0].end(), outputs[1].begin(), outputs[1].end());
      for (size_t i = 0; i < one.gradients.size(); ++i) parts[0].gradients[i] += parts[1].gradients[i];
    } else {
      EXPECT_EQ(parts[1].gradients, parts[0].gradients);
    }
    EXPECT_TRUE(close(outputs[0], y, 1e-12, 1e-12)) << by_tokens;
    EXPECT_NEAR(parts[0].loss, one.loss, 1e-13);
    EXPECT_EQ(parts[1].loss, parts[0].loss);
    EXPECT_TRUE(close(parts[0].gradients, one.gradients, 1e-12, 1e-12)) << by_tokens;
  }
}

TEST(Indexer, RanksThatDivideSequencesAreRefused) {
  EXPECT_EQ(indexed_spec().context_refusal(ContextExchange::automatic, 1, 1), "");
  EXPECT_NE(indexed_spec().context_refusal(ContextExchange::automatic, 1, 2), "");
}

TEST(Indexer, WorkIsThatOfScoresAndChosenKeys) {
  const LatentSpec spec = indexed_spec();
  constexpr double kPairChannels = 4 * (10 + 5), kIndexChannels = 3 * 6;
  EXPECT_EQ(spec.decoding_flops(1), 2 * 2 * (kIndexChannels + kPairChannels));
  EXPECT_EQ(spec.decoding_flops(9), 2 * (10 * kIndexChannels + 3 * kPairChannels));
  EXPECT_DOUBLE_EQ(spec.mixing_flops(12), 12 * kIndexChannels + 2 * (3 - 9.0 / 24) * kPairChannels);
  EXPECT_DOUBLE_EQ(spec.mixing_flops(2), 2 * kIndexChannels + 2 * kPairChannels);
}

}  // namespace
}  // namespace witan
