// For a config.json with one or two changed keys, Witan either matches transformers or refuses the file
// (tests/golden/convert/make_mutations.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "convert/convert_support.h"
#include "model/model_support.h"
#include "witan/base/error.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using testing::Alone;
using testing::golden;
using testing::Rank;

class HfMutations : public ::testing::TestWithParam<std::string> {
 protected:
  HfMutations()
      : all_(Json::parse(read_file(golden("mutations.json")))),
        golden_(all_.at("models").at(GetParam())),
        whole_(Json::parse(read_file(golden(GetParam()) / kHfConfig))),
        config_(whole_.contains(kTextConfig) ? whole_.at(kTextConfig) : whole_),
        expected_(testing::tensors_in(golden(GetParam()) / "expected.safetensors")) {
    fs::create_symlink(golden(GetParam()) / kHfWeights, folder_ / kHfWeights);
  }

  // The first logits of the last token; nothing if the folder is refused. `config` describes the text decoder of a
  // vision-language model, whose other keys stay.
  std::optional<std::vector<double>> logits(const Json& config) {
    Json whole = config;
    if (whole_.contains(kTextConfig)) {
      whole = whole_;
      whole[kTextConfig] = config;
    }
    testing::write_text(folder_ / kHfConfig, whole.dump());
    try {
      HfWeights weights(folder_.path());
      ModelConfig model = weights.model();
      const std::string key = write_toml(model.fields());
      if (const auto known = known_.find(key); known != known_.end()) return known->second;
      return known_[key] = compute(weights);
    } catch (const ConfigError&) {
      return std::nullopt;
    } catch (const CheckpointError&) {
      return std::nullopt;
    }
  }

  std::vector<double> compute(HfWeights& weights) {
    Rank rank(1);
    Alone alone;
    ModelConfig config = weights.model();
    config.hidden_dropout = config.attention.attention_dropout = 0;
    Transformer model(rank.stream, config, 0, alone);
    const auto fill = [&](const std::string& name, const Tensor& to) {
      if (!weights.weights().contains(name)) return;
      std::vector<double> values(static_cast<size_t>(to.elements()));
      weights.read(name, 0, to.elements(), values.data());
      std::copy(values.begin(), values.end(), to.data<float>());
    };
    for (const Parameter* parameter : model.parameters()) fill(parameter->name(), parameter->value());
    for (const Buffer* buffer : model.buffers()) fill(buffer->name(), buffer->value());
    const auto& tokens = expected_.at("tokens");
    const int64_t S = tokens.info.shape[1];
    std::vector<int32_t> ids, positions;
    for (int64_t i = 0; i < S; ++i) {
      int64_t id = 0;
      std::memcpy(&id, tokens.bytes.data() + static_cast<size_t>(i) * sizeof id, sizeof id);
      ids.push_back(static_cast<int32_t>(id));
      positions.push_back(static_cast<int32_t>(i));
    }
    ModelInput input{rank.tensor(Shape{1, S}, ids),
                     {rank.tensor(Shape{1, S}, positions), rank.tensor(Shape{1, S}, std::vector<int32_t>(ids.size()))}};
    input.dropping = Dropping::never;
    Tape tape(rank.stream);
    const std::vector<double> all = testing::values(model.forward(tape, input).logits.value());
    const auto last = all.end() - model.config().padded_vocab_size();
    return {last, last + static_cast<int64_t>(golden_["outcomes"][0].size())};
  }

  // Equal up to 1e-4 of the largest value.
  static bool agree(const std::vector<double>& found, const std::vector<double>& expected) {
    double largest = 0, difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::fabs(expected[i]));
      difference = std::isnan(found[i]) ? INFINITY : std::max(difference, std::fabs(found[i] - expected[i]));
    }
    return difference <= 1e-4 * largest;
  }

  test::TempFolder folder_;
  const Json all_, golden_, whole_, config_;
  const testing::OwnTensors expected_;
  std::map<std::string, std::vector<double>> known_;  // by the model's configuration as TOML
};

TEST_P(HfMutations, MatchTransformersOrAreRefused) {
  size_t same = 0;
  ASSERT_TRUE(agree(*logits(config_), golden_["outcomes"][0].get<std::vector<double>>()));
  for (const Json& mutation : golden_["mutations"]) {
    const Json &change = all_["changes"][mutation[0].get<size_t>()], &outcome = mutation[1];
    Json config = config_;
    config.update(change[0]);
    if (change.size() > 1)
      for (const Json& key : change[1]) config.erase(key);
    const auto found = logits(config);
    // A key that is absent or null and changes nothing must not be refused, except GPT-2's dropouts, which belong
    // together. With a value it may be: keys of other architectures, which transformers ignores here, are refused on
    // purpose.
    const bool lacking = std::ranges::all_of(change[0], [](const Json& value) { return value.is_null(); });
    EXPECT_TRUE(found || outcome != 0 || !lacking || change.dump().find("_pdrop") != std::string::npos)
        << change << " is refused";
    if (!found || outcome.is_null()) continue;  // transformers has no such model
    ++same;
    const Json& expected = golden_["outcomes"][outcome.get<size_t>()];
    EXPECT_TRUE(agree(*found, expected.get<std::vector<double>>()))
        << change << ": Witan computes " << ::testing::PrintToString(*found) << ", transformers " << expected
        << (outcome == 0 ? ", as before the change" : "");
  }
  EXPECT_GT(same, 50);
}

INSTANTIATE_TEST_SUITE_P(Golden, HfMutations,
                         ::testing::ValuesIn(testing::architecture_names({"llama3", "olmo3_yarn"})),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace witan
