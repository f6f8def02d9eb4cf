// Damaged folders of hybrid, sparse and gated models: each tensor that is missing, of another shape or of a dtype that
// weights do not have is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/text.h"
#include "witan/convert/hf/hf_weights.h"

namespace witan {
namespace {

using test::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::OwnTensor;
using testing::OwnTensors;

class HfDamage : public ::testing::TestWithParam<const char*> {};

void damage(OwnTensors& all, const std::string& name, size_t turn) {
  OwnTensor& tensor = all.at(name);
  if (turn == 0) {
    all.erase(name);
  } else if (turn == 1) {
    const size_t row = tensor.bytes.size() / static_cast<size_t>(tensor.info.shape[0]);
    tensor.info.shape = tensor.info.shape.with(0, tensor.info.shape[0] + 1);
    tensor.bytes.resize(tensor.bytes.size() + row);
  } else {
    tensor.info.dtype = tensor.info.dtype == "I64" ? "F64" : tensor.info.dtype == "F32" ? "I32" : "I16";
  }
}

// In turn each tensor is missing, of another shape, or of a dtype that weights do not have.
TEST_P(HfDamage, TensorsAreNamed) {
  const TempFolder folder;
  const OwnTensors all = testing::tensors_in(testing::golden(GetParam()));
  const HfWeights whole(testing::golden(GetParam()));
  size_t turn = 0;
  for (const auto& [name, tensor] : all) {
    // Tensors of towers are kept whatever they are, and the embedding shows where the text decoder is.
    if (whole.notes().contains(name) || name.ends_with("embed_tokens.weight")) continue;
    OwnTensors changed = all;
    damage(changed, name, turn++ % 3);
    testing::write_model(folder / "in", GetParam(), changed);
    EXPECT_THAT(test::message_of<Error>([&] { HfWeights(folder / "in"); }),
                AllOf(HasSubstr((folder / "in").string()), HasSubstr(cat("\"", name, "\""))));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, HfDamage,
                         ::testing::Values("deepseek_v4_even", "gemma4_text_small", "glm_moe_dsa", "granitemoehybrid",
                                           "kimi_linear", "lfm2_moe", "nemotron_h", "olmo_hybrid", "qwen3_5"),
                         [](const auto& model) { return std::string(model.param); });

// Tables of experts hold whole numbers, each of an expert that exists.
TEST(HfTables, ExpertsThatDoNotExistAreNamed) {
  const TempFolder folder;
  const auto refusal = [&](int64_t expert) {
    OwnTensors all = testing::tensors_in(testing::golden("deepseek_v4_even"));
    OwnTensor& table = all.at("model.layers.0.ffn.gate.tid2eid");  // [64, 3]
    std::memcpy(table.bytes.data() + (5 * 3 + 1) * sizeof expert, &expert, sizeof expert);
    testing::write_model(folder / "in", "deepseek_v4_even", all);
    return test::message_of<CheckpointError>([&] { HfWeights(folder / "in"); });
  };
  EXPECT_THAT(refusal(8), HasSubstr("\"model.layers.0.ffn.gate.tid2eid\" gives token 5 expert 8, but the model has 8 "
                                    "experts: the table is damaged"));
  EXPECT_THAT(refusal(-1), HasSubstr("gives token 5 expert -1"));
}

}  // namespace
}  // namespace witan
