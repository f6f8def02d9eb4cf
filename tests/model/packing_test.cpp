// In a model of Gated DeltaNet or Mamba-2 a document's logits and gradients have the same bits whether it is packed
// behind others or alone. Attention sums over tiles of keys that begin at fixed positions of a row, so that its last
// bits depend on the place.
#include <gmock/gmock.h>

#include <numeric>

#include "model/model_support.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::Alone;
using testing::Rank;
using testing::values;

constexpr int64_t kLengths[] = {3, 1, 70, 2};
constexpr int64_t kTokens = 76;

struct Documents {
  int64_t first = 0, count = 1;  // of kLengths
  int64_t begin() const { return std::accumulate(kLengths, kLengths + first, int64_t{0}); }
  int64_t tokens() const { return std::accumulate(kLengths + first, kLengths + first + count, int64_t{0}); }
};

// These documents in one row. No token occurs twice, so that each row of the embedding's gradient is one token's.
testing::MicroBatch row_of(Rank& rank, const ModelConfig& config, const Documents& documents) {
  const int64_t tokens = documents.tokens(), begin = documents.begin();
  std::vector<int32_t> ids, positions, sequences, targets;
  for (int64_t i = documents.first; i < documents.first + documents.count; ++i)
    for (int64_t at = 0; at < kLengths[i]; ++at) {
      positions.push_back(static_cast<int32_t>(at));
      sequences.push_back(static_cast<int32_t>(i));
    }
  for (int64_t at = begin; at < begin + tokens; ++at) {
    ids.push_back(static_cast<int32_t>(at * 29 % kTokens));
    targets.push_back(static_cast<int32_t>(at * 31 % kTokens));
  }
  const Shape row{1, tokens};
  testing::MicroBatch batch{{rank.tensor(row, ids), {rank.tensor(row, positions), rank.tensor(row, sequences)}},
                            rank.tensor(Shape{tokens}, targets),
                            rank.stream.empty({tokens}, accumulator(config.compute_dtype()))};
  kernels::fill(rank.stream, batch.weights, 1.0 / 8);
  return batch;
}

struct Results {
  std::vector<std::vector<double>> logits, gradients;  // of each token, and of its row of the embedding
};

Results results_of(Rank& rank, Transformer& model, const Documents& documents) {
  const testing::MicroBatch batch = row_of(rank, model.config(), documents);
  for (Parameter* parameter : model.parameters()) parameter->clear_gradient();
  Tape tape(rank.stream);
  const ModelOutput out = model.forward(tape, batch.input);
  const Tensor logits = out.logits.value().reshape({documents.tokens(), model.config().padded_vocab_size()});
  Results found;
  for (int64_t at = 0; at < documents.tokens(); ++at) found.logits.push_back(values(logits.narrow(0, at, 1)));
  tape.backward({{model.loss(tape, out.logits, batch.targets, batch.weights).loss, {}}});
  const auto parameters = model.parameters();
  const auto embedding = std::ranges::find(parameters, "embedding.weight", &Parameter::name);
  for (int64_t at = documents.begin(); at < documents.begin() + documents.tokens(); ++at)
    found.gradients.push_back(values((*embedding)->gradient().narrow(0, at * 29 % kTokens, 1)));
  return found;
}

void expect_the_same_bits(ModelConfig config) {
  config.vocab_size = kTokens;
  config.untie_embeddings_and_output_weights = true;
  config.moe.moe_aux_loss_coeff = "0";
  config.moe.moe_z_loss_coeff = 0;
  for (const char* dtype : {"float32", "bfloat16"}) {
    config.dtype = dtype;
    Rank rank;
    Alone alone;
    Transformer model(rank.stream, config, 1, alone);
    testing::bind_gradients(rank.stream, model);
    const Results packed = results_of(rank, model, {0, std::ssize(kLengths)});
    for (int64_t i = 0; i < std::ssize(kLengths); ++i) {
      const Documents one{i};
      const Results single = results_of(rank, model, one);
      for (int64_t at = 0; at < one.tokens(); ++at) {
        const auto in_pack = static_cast<size_t>(one.begin() + at), by_itself = static_cast<size_t>(at);
        EXPECT_EQ(single.logits[by_itself], packed.logits[in_pack]) << dtype << ", document " << i << ", token " << at;
        EXPECT_EQ(single.gradients[by_itself], packed.gradients[in_pack])
            << dtype << ", document " << i << ", token " << at;
      }
    }
  }
}

ModelConfig linear_everywhere(int64_t experts) {
  ModelConfig config = testing::tiny_config(experts);
  testing::add_linear_attention(config);
  config.linear_attention.linear_attention_freq = "[1,1]";
  return config;
}

TEST(Packing, ChangesNoBitWithGatedDeltaNet) {
  expect_the_same_bits(linear_everywhere(0));
}

TEST(Packing, ChangesNoBitWithDecaysOfChannels) {
  ModelConfig config = linear_everywhere(4);
  config.linear_attention.experimental_attention_variant = "kimi_delta";
  config.linear_attention.linear_num_key_heads = config.linear_attention.linear_num_value_heads;
  expect_the_same_bits(config);
}

TEST(Packing, ChangesNoBitWithShortConvolutions) {
  ModelConfig config = testing::tiny_config(4);
  testing::add_short_convolutions(config);
  config.linear_attention.linear_attention_freq = "[1,1]";
  expect_the_same_bits(config);
}

TEST(Packing, ChangesNoBitWithExperts) {
  expect_the_same_bits(linear_everywhere(4));
}

TEST(Packing, ChangesNoBitWithMamba2) {
  for (const char* layers : {"M-", "MEM"}) {
    ModelConfig config = testing::tiny_config(4);
    testing::add_hybrid_layers(config, layers);
    expect_the_same_bits(config);
  }
  ModelConfig beside_mlps = testing::tiny_config(4);
  testing::add_granite_layers(beside_mlps);
  beside_mlps.linear_attention.linear_attention_freq = "[1,1]";
  expect_the_same_bits(beside_mlps);
}

}  // namespace
}  // namespace witan
