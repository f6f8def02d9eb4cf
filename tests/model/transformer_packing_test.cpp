// A document has the same loss and the same gradients, to the bit, alone and packed with others anywhere in a row.
#include <numeric>

#include "model/model_support.h"

namespace witan {
namespace {

using testing::add_latent_attention;
using testing::Alone;
using testing::bind_gradients;
using testing::mixed_config;
using testing::Rank;
using testing::sinks_config;
using testing::tiny_config;
using testing::values;

constexpr int64_t kLength = 150, kOthers = 30;  // tokens of the document, which differ, and the ids of all others

struct DocumentPass {
  std::vector<double> losses, gradient;  // of each token, and of each token's embedding
};

// A pass over a row in which the document follows `before` tokens of other documents, and `after` ones follow it. Only
// the document's tokens count in the loss.
DocumentPass pass_of_document(Rank& rank, Transformer& model, const std::vector<int64_t>& before, int64_t after) {
  const int64_t first = std::accumulate(before.begin(), before.end(), int64_t{0}), S = first + kLength + after;
  const DType wide = accumulator(model.config().compute_dtype());
  std::vector<int32_t> tokens, positions, ids, targets;
  std::vector<double> weights(static_cast<size_t>(S));
  const auto add = [&](int64_t length, bool counted) {
    const int32_t id = ids.empty() ? 0 : ids.back() + 1;
    for (int64_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<int32_t>(counted ? kOthers + i : (i * i + id) % kOthers));
      targets.push_back(static_cast<int32_t>((7 * i + 3) % (kOthers + kLength)));
      if (counted) weights[positions.size()] = 1.0 / kLength;
      positions.push_back(static_cast<int32_t>(i));
      ids.push_back(id);
    }
  };
  for (const int64_t length : before) add(length, false);
  add(kLength, true);
  add(after, false);
  const Tensor weight = rank.stream.empty({S}, wide);
  dispatch_floating(wide, [&]<class T>() {
    for (size_t i = 0; i < weights.size(); ++i) weight.data<T>()[i] = T(weights[i]);
  });
  const ModelInput input{rank.tensor<int32_t>({1, S}, tokens),
                         {rank.tensor<int32_t>({1, S}, positions), rank.tensor<int32_t>({1, S}, ids)},
                         testing::randomness_of(rank.stream, 7)};
  bind_gradients(rank.stream, model);
  Tape tape(rank.stream);
  ModelOutput out = model.forward(tape, input);
  const auto loss = model.loss(tape, std::move(out.logits), rank.tensor<int32_t>({S}, targets), weight);
  tape.backward({{loss.loss, {}}});
  DocumentPass pass{values(loss.token_losses.narrow(0, first, kLength)), {}};
  for (Parameter* parameter : model.parameters())
    if (parameter->name() == "embedding.weight")
      pass.gradient = values(parameter->gradient().narrow(0, kOthers, kLength));
  return pass;
}

TEST(TransformerPacking, ChangesNoBitOfADocument) {
  ModelConfig grouped = tiny_config(4), windows = mixed_config(), latent = tiny_config(4);
  windows.attention.window_size = "89,0";
  add_latent_attention(latent, {.q_rank = 12, .kv_rank = 8, .head = 6, .rotated_head = 4, .value_head = 10});
  for (ModelConfig config : {grouped, windows, sinks_config(), latent})
    for (const char* dtype : {"float32", "bfloat16"}) {
      config.dtype = dtype;
      config.vocab_size = kOthers + kLength;
      config.untie_embeddings_and_output_weights = true;
      Rank rank;
      Alone alone_rank;
      Transformer model(rank.stream, config, 5, alone_rank);
      const DocumentPass alone = pass_of_document(rank, model, {}, 0);
      ASSERT_EQ(alone.losses.size(), size_t{kLength});
      ASSERT_EQ(alone.gradient.size(), static_cast<size_t>(kLength * config.hidden_size));
      EXPECT_GT(std::abs(alone.gradient.back()), 0) << "the last token has a gradient";
      for (const std::vector<int64_t>& before : {std::vector<int64_t>{1}, {37, 70}, {64}, {5, 80, 3, 100}}) {
        const DocumentPass packed = pass_of_document(rank, model, before, 41);
        EXPECT_EQ(packed.losses, alone.losses) << dtype << ", after " << before.size() << " documents";
        EXPECT_EQ(packed.gradient, alone.gradient) << dtype << ", after " << before.size() << " documents";
      }
    }
}

}  // namespace
}  // namespace witan
