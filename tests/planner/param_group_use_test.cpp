#include <gmock/gmock.h>

#include "support/message_of.h"
#include "train/step/run_support.h"
#include "witan/base/error.h"
#include "witan/model/counts.h"
#include "witan/planner/pages/plan_page.h"
#include "witan/planner/plan.h"
#include "witan/train/config/trained_parameters.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunConfig with_groups(const std::string& groups) {
  RunConfig config = testing::small_config();
  set_field(config.fields(), "optimizer_groups", groups, "test");
  config.validate();
  return config;
}

std::string refusal(const std::string& groups) {
  return test::message_of<ConfigError>([&] { make_plan(resolve(with_groups(groups), {})); });
}

TEST(ParamGroupUse, EveryParameterIsInOneGroup) {
  const RunConfig config = with_groups(R"([{kind = "routers", optimizer = "sgd", lr = 0.5},
                                           {match = "layers.1.*", weight_decay = 0, shard_by = "matrices"},
                                           {kind = "norms"}])");
  const auto uses = use_of_param_groups(config);
  std::vector<std::string> labels;
  int64_t parameters = 0;
  for (const ParamGroupUse& use : uses) {
    labels.push_back(use.label);
    parameters += use.parameters;
  }
  EXPECT_THAT(labels, ElementsAre("kind = routers", "match = layers.1.*", "kind = norms", "all others"));
  EXPECT_EQ(parameters, count_parameters(config.model).exact);
  EXPECT_EQ(uses[0].tensors, 2);
  EXPECT_EQ(uses[0].parameters, 2 * config.model.moe.num_experts * 32);
  EXPECT_EQ(uses[0].weight_decay, config.optimizer.weight_decay);
  EXPECT_EQ(uses[2].weight_decay, 0) << "norms do not decay";
  EXPECT_EQ(uses[2].tensors, 3) << "two of layer 0 and the last one; layer 1's are in another group";
  EXPECT_THAT(
      format_plan(make_plan(resolve(config, {})), 0, std::nullopt),
      HasSubstr("Parameter groups of the optimizer\n  kind = routers           512 in 2 tensors: sgd, learning rate "
                "0.5 to 0.0001, weight decay 0.1\n  match = layers.1.*"));
}

TEST(ParamGroupUse, FrozenParametersAreMatchedButNotCounted) {
  RunConfig config = with_groups(R"([{kind = "norms", lr = 0.5}, {kind = "experts"}])");
  config.model.freeze = "norms";
  const auto uses = use_of_param_groups(config);
  ASSERT_EQ(uses.size(), 2u) << "a group of only frozen parameters is valid and is not shown";
  EXPECT_EQ(uses[0].label, "kind = experts");
  int64_t norms = 0;
  for (const ParameterSpec& spec : all_parameters(config.model))
    if (spec.frozen) norms += spec.shape.elements();
  EXPECT_GT(norms, 0);
  EXPECT_EQ(uses[0].parameters + uses[1].parameters, count_parameters(config.model).exact - norms);
}

TEST(ParamGroupUse, ShowsNothingWithoutGroups) {
  EXPECT_TRUE(use_of_param_groups(testing::small_config()).empty());
  EXPECT_EQ(format_plan(make_plan(resolve(testing::small_config(), {})), 0, std::nullopt).find("Parameter groups"),
            std::string::npos);
}

TEST(ParamGroupUse, RefusesGroupsWithoutParameters) {
  const std::string nothing = refusal(R"([{match = "*.q_projection.*"}])");
  EXPECT_THAT(nothing,
              HasSubstr("[[optimizer.groups]] 1 (match = *.q_projection.*) matches no parameter; this model has "
                        "embeddings (embedding.weight)"));
  EXPECT_THAT(nothing, HasSubstr("layers.*.attention.q_proj.weight"));
  EXPECT_THAT(nothing, HasSubstr("experts (layers.*."));
  EXPECT_THAT(refusal(R"([{kind = "biases"}])"), HasSubstr("(kind = biases) matches no parameter"));
  EXPECT_EQ(
      refusal(R"([{match = "*"}, {kind = "routers"}])"),
      "[[optimizer.groups]] 2 (kind = routers): groups before it take all 2 parameters that it matches, and the first "
      "group that matches wins: put it before them, or leave it out");
}

TEST(ParamGroupUse, ShowsParametersThatMuonLeavesToAdam) {
  RunConfig config = testing::small_config();
  config.optimizer.optimizer = "muon";
  const auto uses = use_of_param_groups(config);
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(uses[0].optimizer, "adam");
  EXPECT_EQ(uses[0].label, "kind = embeddings,head,norms,biases,routers");
  EXPECT_EQ(uses[1].optimizer, "muon");
  EXPECT_EQ(uses[1].label, "all others");
  EXPECT_EQ(uses[1].shard_by, "matrices");
  EXPECT_EQ(uses[0].parameters + uses[1].parameters, count_parameters(config.model).exact);
}

// If one of a table's two groups is empty, it is not shown; if both are, the table is refused.
TEST(ParamGroupUse, TablesThatInheritMuonMayMatchOnlyOneKind) {
  RunConfig config = with_groups(R"([{match = "*.q_proj.*", lr_mult = 2}])");
  config.optimizer.optimizer = "muon";
  std::vector<std::string> optimizers;
  for (const ParamGroupUse& use : use_of_param_groups(config)) optimizers.push_back(use.optimizer);
  EXPECT_THAT(optimizers, ElementsAre("muon", "adam", "muon"));
  config = with_groups(R"([{match = "*.q_projection.*"}])");
  config.optimizer.optimizer = "muon";
  EXPECT_THAT(test::message_of<ConfigError>([&] { use_of_param_groups(config); }),
              HasSubstr("[[optimizer.groups]] 1 ("));
}

}  // namespace
}  // namespace witan
