#include "witan/model/unit.h"

#include <gtest/gtest.h>

#include "support/module.h"
#include "witan/model/transformer.h"

namespace witan {
namespace {

using testing::Rank;
using Names = std::vector<std::string>;

ModelConfig small_model() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 16;
  config.vocab_size = 31;
  config.mlp.ffn_hidden_size = 8;
  config.moe.num_experts = 4;
  return config;
}

// Records its calls.
struct Heard : UnitAccess {
  void begin_forward() override { said.push_back("forward"); }
  void begin_backward() override { said.push_back("backward"); }
  void end_backward() override { said.push_back("end"); }
  void acquire(int unit, Use use) override { said.push_back(cat('+', unit, use == Use::backward ? "b" : "")); }
  void release(int unit, Use use) override { said.push_back(cat('-', unit, use == Use::backward ? "b" : "")); }
  Names take() { return std::exchange(said, {}); }
  Names said;
};

struct Model {
  explicit Model(const ModelConfig& config) : transformer(rank.stream, config, 1, alone) {
    testing::bind_gradients(rank.stream, transformer);
    transformer.attach({.units = &heard});
  }
  ModelInput input() {
    return {rank.tensor<int32_t>({1, 3}, {1, 2, 3}),
            {rank.tensor<int32_t>({1, 3}, {0, 1, 2}), rank.tensor<int32_t>({1, 3}, {0, 0, 0})}};
  }
  void forward_and_backward() {
    Tape tape(rank.stream);
    const ModelOutput out = transformer.forward(tape, input());
    forward = heard.take();
    tape.backward({{out.logits, {}}});
    backward = heard.take();
  }
  Rank rank;
  testing::Alone alone;
  Heard heard;
  Transformer transformer;
  Names forward, backward;
};

TEST(Units, AreEmbeddingBlocksAndHead) {
  ModelConfig config = small_model();
  config.untie_embeddings_and_output_weights = true;
  Model model(config);
  Names units, first;
  for (const Unit& unit : model.transformer.units()) {
    units.push_back(cat(unit.number, ' ', unit.name, ' ', unit.modules.size(), unit.is_block() ? " block" : ""));
    first.push_back(unit.parameters.front()->name());
  }
  EXPECT_EQ(units, (Names{"0 embedding 1", "1 layers.0 1 block", "2 layers.1 1 block", "3 head 2"}));
  EXPECT_EQ(first, (Names{"embedding.weight", "layers.0.attention_norm.weight", "layers.1.attention_norm.weight",
                          "final_norm.weight"}));
  EXPECT_EQ(parameters_of(model.transformer.units()), model.transformer.parameters());
}

// Units have the numbers of the whole model. The last stage has the head's copy of a tied embedding, in its last chunk.
TEST(Units, OfAPipelineStageCoverOnlyTheStage) {
  Rank rank;
  testing::Alone alone;
  ModelConfig config = small_model();
  config.num_layers = 4;
  config.untie_embeddings_and_output_weights = false;
  Transformer last(rank.stream, config, 1, alone, {{{1, 2}, {3, 4}}, false, true});
  Names units;
  for (const Unit& unit : last.units()) units.push_back(cat(unit.number, ' ', unit.name, " in chunk ", unit.chunk));
  EXPECT_EQ(units,
            (Names{"0 embedding in chunk 1", "2 layers.1 in chunk 0", "4 layers.3 in chunk 1", "5 head in chunk 1"}));
  Transformer middle(rank.stream, config, 1, alone, {{{1, 3}}, false, false});
  EXPECT_EQ(middle.units().size(), 2U);
}

TEST(UnitGuards, AcquireUnitsForwardAndBackward) {
  ModelConfig config = small_model();
  config.untie_embeddings_and_output_weights = true;
  Model model(config);
  model.forward_and_backward();
  EXPECT_EQ(model.forward, (Names{"forward", "+0", "-0", "+1", "-1", "+2", "-2", "+3", "-3"}));
  EXPECT_EQ(model.backward, (Names{"backward", "+3b", "-3b", "+2b", "-2b", "+1b", "-1b", "end"}))
      << "an embedding's backward reads no value";
}

TEST(UnitGuards, AcquireTheEmbeddingForATiedHead) {
  ModelConfig config = small_model();
  config.untie_embeddings_and_output_weights = false;
  Model model(config);
  model.forward_and_backward();
  EXPECT_EQ(model.forward, (Names{"forward", "+0", "-0", "+1", "-1", "+2", "-2", "+3", "+0", "-0", "-3"}));
  EXPECT_EQ(model.backward, (Names{"backward", "+3b", "+0b", "-0b", "-3b", "+2b", "-2b", "+1b", "-1b", "end"}));
}

TEST(UnitGuards, AcquireABlockAgainForRecomputation) {
  ModelConfig config = small_model();
  config.recompute_granularity = "full";
  config.untie_embeddings_and_output_weights = true;
  Model model(config);
  model.forward_and_backward();
  EXPECT_EQ(model.forward, (Names{"forward", "+0", "-0", "+1", "-1", "+2", "-2", "+3", "-3"}));
  EXPECT_EQ(model.backward,
            (Names{"backward", "+3b", "-3b", "+2", "-2", "+2b", "-2b", "+1", "-1", "+1b", "-1b", "end"}));
}

// Evaluation and generation have forwards without a backward.
TEST(UnitGuards, AcquireUnitsInForwardsWithoutABackward) {
  ModelConfig config = small_model();
  config.untie_embeddings_and_output_weights = true;
  Model model(config);
  Tape off(model.rank.stream, Tape::Mode::off);
  model.transformer.forward(off, model.input());
  EXPECT_EQ(model.heard.take(), (Names{"forward", "+0", "-0", "+1", "-1", "+2", "-2", "+3", "-3"}));
  const auto states = model.transformer.make_states(model.rank.stream, {1, 3});
  model.transformer.decode(model.rank.stream, step_input(model.rank.stream, {{0, 0, 3}}, std::vector{1, 2, 3}), states);
  EXPECT_EQ(model.heard.take(), (Names{"+0", "-0", "+1", "-1", "+2", "-2", "+3", "-3"}));
}

}  // namespace
}  // namespace witan
