// Missing and redundant keys of a config.json, compared with transformers' configuration classes
// (tests/golden/convert/make_defaults.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HfDefaults : public ::testing::TestWithParam<std::string> {
 protected:
  HfDefaults()
      : golden_(Json::parse(read_file(testing::golden("defaults.json"))).at(GetParam())),
        required_({{"model_type", GetParam()}}) {
    required_.update(golden_.at("required"));
    all_ = required_;
    all_.update(golden_.at("defaults"));
  }

  static HfModel read(const Json& config) { return read_hf_config(config.dump(), "config.json"); }
  // The differences between two models in everything that a config.json sets.
  static std::vector<std::string> different(const HfModel& a, const HfModel& b) {
    std::vector<std::string> all = differences(a.model, b.model);
    if (a.model.attention.attention_dropout != b.model.attention.attention_dropout)
      all.emplace_back("attention_dropout");
    if (a.model.hidden_dropout != b.model.hidden_dropout) all.emplace_back("hidden_dropout");
    if (a.model.init_method_std != b.model.init_method_std) all.emplace_back("init_method_std");
    if (a.positions != b.positions) all.emplace_back("positions");
    if (a.mtp_layers != b.mtp_layers) all.emplace_back("mtp_layers");
    return all;
  }

  const Json golden_;
  Json required_, all_;
};

TEST_P(HfDefaults, MatchTheConfigurationClass) {
  const HfModel expected = read(all_);
  const Json defaults = hf_defaults(*find_architecture(GetParam()));
  EXPECT_THAT(different(read(required_), expected), IsEmpty());
  for (const auto& [key, value] : golden_.at("defaults").items()) {
    Json absent = all_;
    absent.erase(key);
    EXPECT_THAT(different(read(absent), expected), IsEmpty()) << key;
    const auto known = defaults.find(key);
    const bool listed = known != defaults.end() && !value.is_null() && key != "rope_parameters";
    EXPECT_EQ(listed ? *known : value, value) << key;
  }
}

TEST_P(HfDefaults, KeysWithoutADefaultAreRequired) {
  for (const auto& [key, value] : golden_.at("required").items()) {
    Json absent = all_;
    absent.erase(key);
    EXPECT_THAT(test::message_of<ConfigError>([&] { read(absent); }), HasSubstr(key + " is missing"));
  }
}

// Keys that the class no longer has change nothing; others may have had another value.
TEST_P(HfDefaults, KeysOfOlderVersionsAreRead) {
  const HfModel expected = read(all_);
  for (const auto& [key, values] : golden_.at("older").items())
    for (const Json& value : values) {
      if (golden_.at("required").contains(key)) continue;
      Json older = all_;
      older[key] = value;
      if (GetParam() == "olmo3" &&
          key == "rope_parameters") {  // versions disagree about the layers to which this applies
        EXPECT_THAT(test::message_of<ConfigError>([&] { read(older); }), HasSubstr("rope_parameters = "));
        continue;
      }
      const HfModel found = read(older);
      const bool has_default = golden_.at("defaults").contains(key);
      EXPECT_TRUE(has_default || different(found, expected).empty()) << key << " = " << value;
    }
}

// These keys come from other programs, or concern generation and training.
TEST_P(HfDefaults, IrrelevantKeysAreIgnored) {
  const Json harmless = {{"is_llama_config", true},
                         {"transformers.js_config", {{"dtype", "q4"}}},
                         {"_attn_implementation", "sdpa"},
                         {"_attn_implementation_autoset", true},
                         {"_attn_implementation_internal", "eager"},
                         {"typical_p", 0.9},
                         {"num_beam_groups", 2},
                         {"torchscript", true},
                         {"neftune_noise_alpha", 5.0},
                         {"unk_token_id", 3},
                         {"max_window_layers", 21},
                         {"repetition_penalty", 1.2},
                         {"unsloth_version", "2025.1"}};
  const HfModel expected = read(all_);
  for (const auto& [key, value] : harmless.items()) {
    Json config = all_;
    config[key] = value;
    EXPECT_THAT(different(read(config), expected), IsEmpty()) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, HfDefaults, ::testing::ValuesIn(testing::architecture_names()),
                         [](const auto& type) { return type.param; });

}  // namespace
}  // namespace witan
