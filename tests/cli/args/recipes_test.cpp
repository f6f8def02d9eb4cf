// Recipes are found by name from any folder, since the program contains them.
#include "witan/cli/args/recipes.h"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "cli/cli_support.h"
#include "support/program.h"
#include "witan/base/error.h"
#include "witan/cli/args/run_config.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/model_function.h"
#include "witan/model/counts.h"

namespace witan::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

const fs::path kTree = WITAN_SOURCE_DIR;

TEST(RecipesTest, ProgramContainsAllFilesOfTheTree) {
  size_t files = 0;
  for (const auto& file : fs::recursive_directory_iterator(kTree / "recipes")) {
    if (!file.is_regular_file()) continue;
    ++files;
    const std::string name = "recipes/" + fs::relative(file.path(), kTree / "recipes").string();
    const auto found = std::ranges::find(cli::recipes(), name, &cli::Recipe::name);
    ASSERT_NE(found, cli::recipes().end()) << name;
    EXPECT_EQ(found->text, read_text(file.path())) << name;
  }
  EXPECT_EQ(cli::recipes().size(), files);
  EXPECT_THAT(cli::recipe_names(".toml"), AllOf(Contains("recipes/default.toml"),
                                                Contains("recipes/presets/gpt2-124m.toml"), Each(EndsWith(".toml"))));
  EXPECT_THAT(cli::recipe_names(".args"), Contains("recipes/megatron/dense.args"));
}

TEST(RecipesTest, RefusalsSuggestASimilarName) {
  expect_refusal({"config", "show", "--config", "recipes/reference/dens.toml"}, 3,
                 {"--config recipes/reference/dens.toml: there is no such file below this folder, and no such recipe",
                  "did you mean recipes/reference/dense.toml?"});
  expect_refusal({"plan", "@recipes/megatron/dens.args"}, 2,
                 {"@recipes/megatron/dens.args: there is no such file", "recipes/megatron/dense.args?"});
}

// A copy of only the program in a folder without recipes.
class CopiedProgram : public ::testing::Test {
 protected:
  CopiedProgram() {
    fs::create_directories(folder_ / "elsewhere");
    fs::copy_file(WITAN_PROGRAM, folder_ / "witan");
  }
  std::string said(const std::string& arguments) const {
    Program program({"/bin/sh", "-c", "cd '" + (folder_ / "elsewhere").string() + "' && ../witan " + arguments},
                    folder_ / "log");
    program.wait();
    return read_text(folder_ / "log");
  }

  TempFolder folder_;
};

TEST_F(CopiedProgram, HasTheRecipes) {
  EXPECT_THAT(said("config show --config recipes/reference/dense.toml --changed"),
              AllOf(HasSubstr("num_layers = 24"), HasSubstr("# recipes/reference/dense.toml:")));
  EXPECT_THAT(said("config show --no-megatron @recipes/megatron/dense.args --changed"), HasSubstr("num_layers = "));
  EXPECT_THAT(said("config diff recipes/default.toml recipes/reference/dense.toml"), HasSubstr("num_layers"));
}

TEST_F(CopiedProgram, PrefersFilesOfTheWorkingFolder) {
  write_text(folder_ / "elsewhere/recipes/reference/dense.toml", "num_layers = 6\n");
  EXPECT_THAT(said("config show --config recipes/reference/dense.toml --changed"),
              AllOf(HasSubstr("num_layers = 6"), HasSubstr("# recipes/reference/dense.toml:1")));
}

RunConfig config_of(const std::string& name) {
  RunConfig config;
  parse_toml(config.fields(), cli::find_preset(name).toml, name);
  return config;
}

TEST(Presets, HaveThePublishedParameterCounts) {
  struct Figures {
    std::string name;
    int64_t all, active;
  };
  // GPT-2: transformers' GPT2LMHeadModel, and the rows that pad its vocabulary to 50304. The MoE reference:
  // docs/parity.md. Mixtral 8x7B: transformers' MixtralForCausalLM; active: less 6 of 8 experts, 3 x 4096 x 14336 each,
  // in 32 layers. The others: transformers' DeepseekV2ForCausalLM, DeepseekV3ForCausalLM (of Kimi K2 and
  // Moonlight too), DeepseekV32ForCausalLM, GlmMoeDsaForCausalLM, Glm4MoeForCausalLM, Glm4MoeLiteForCausalLM,
  // MiniMaxM2ForCausalLM, GptOssForCausalLM (whose authors' 3.61 B active parameters are without the embedding),
  // GraniteMoeHybridForCausalLM, KimiLinearForCausalLM, LlamaForCausalLM, MixtralForCausalLM, Lfm2MoeForCausalLM,
  // OlmoHybridForCausalLM, Olmo2ForCausalLM, Olmo3ForCausalLM, OlmoeForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM,
  // Qwen3NextForCausalLM, Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM on the meta device; active likewise, with the
  // embeddings.
  const std::vector<Figures> published = {{"deepseek-v2-lite", 15'706'484'224, 2'661'150'208},
                                          {"deepseek-v3", 671'026'404'352, 37'552'282'624},
                                          {"deepseek-v3.2", 671'877'929'216, 38'403'807'488},
                                          {"deepseek-v4-flash", 284'332'230'231, 13'799'622'231},
                                          {"gemma-3-1b", 999'885'952, 999'885'952},
                                          {"gemma-3-270m", 268'098'176, 268'098'176},
                                          {"gemma-3-27b", 27'009'346'304, 27'009'346'304},
                                          {"gemma-3-4b", 3'880'263'168, 3'880'263'168},
                                          {"gemma-4-26b-a4b", 25'233'141'760, 3'822'530'560},
                                          {"gemma-4-31b", 30'697'345'280, 30'697'345'280},
                                          {"gemma-4-e2b", 4'628'569'344, 4'628'569'344},
                                          {"gemma-4-e4b", 7'463'013'376, 7'463'013'376},
                                          {"glm-4.5-air", 106'852'245'504, 13'424'123'904},
                                          {"glm-4.7-flash", 29'943'390'976, 3'896'763'136},
                                          {"glm-5", 743'911'199'232, 41'784'709'632},
                                          {"gpt-oss-120b", 116'829'156'672, 5'711'982'912},
                                          {"gpt-oss-20b", 20'914'757'184, 4'187'440'704},
                                          {"gpt2-124m", 124'439'808 + 47 * 768, 124'439'808 + 47 * 768},
                                          {"granite-4.0-h-small", 32'207'337'984, 8'803'121'664},
                                          {"granite-4.0-h-tiny", 6'939'037'248, 1'465'470'528},
                                          {"kimi-k2", 1'026'408'209'408, 32'861'477'888},
                                          {"kimi-linear-48b-a3b", 49'122'675'072, 3'484'453'248},
                                          {"lfm2-8b-a1b", 8'339'929'856, 1'557'740'288},
                                          {"llama2-7b", 6'738'415'616, 6'738'415'616},
                                          {"llama3-8b", 8'030'261'248, 8'030'261'248},
                                          {"megatron-moe-4b", 4'375'732'736, 213'934'592},
                                          {"minimax-m2", 228'689'748'992, 11'030'537'216},
                                          {"mixtral-8x22b", 140'620'634'112, 39'152'031'744},
                                          {"mixtral-8x7b", 46'702'792'704, 12'879'925'248},
                                          {"moonlight-16b-a3b", 15'960'108'544, 2'914'774'528},
                                          {"nanogpt-dense", 1'102'315'567, 1'102'315'567},
                                          {"nanogpt-moe", 3'921'084'463, 1'102'512'175},
                                          {"nemotron-3-nano-30b-a3b", 31'577'937'344, 3'580'073'408},
                                          {"nemotron-h-8b", 8'100'852'736, 8'100'852'736},
                                          {"olmo-hybrid-7b", 7'430'870'688, 7'430'870'688},
                                          {"olmo2-7b", 7'298'617'344, 7'298'617'344},
                                          {"olmo3-7b", 7'298'011'136, 7'298'011'136},
                                          {"olmoe-1b-7b", 6'919'161'856, 1'282'017'280},
                                          {"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520},
                                          {"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704},
                                          {"qwen3-8b", 8'190'735'360, 8'190'735'360},
                                          {"qwen3-next-80b-a3b", 79'674'391'296, 3'874'929'408},
                                          {"qwen3.5-0.8b", 752'393'024, 752'393'024},
                                          {"qwen3.5-35b-a3b", 34'660'610'688, 3'454'988'928},
                                          {"qwen3.5-9b", 8'953'803'264, 8'953'803'264}};
  EXPECT_EQ(published.size(), cli::presets().size());
  for (const Figures& figures : published) {
    const ParameterCounts counts = count_parameters(config_of(figures.name).model);
    EXPECT_EQ(counts.exact, figures.all) << figures.name;
    EXPECT_EQ(counts.active, figures.active) << figures.name;
  }
}

// The defaults of transformers' class describe the released model (tests/golden/convert/defaults.json), except that its
// attention has no rotary positions.
TEST(Presets, OlmoHybridIsTheReleasedModel) {
  const HfModel released = read_hf_config(
      R"({"model_type": "olmo_hybrid", "rope_parameters": {"rope_theta": null, "rope_type": "default"}})", "released");
  EXPECT_THAT(differences(config_of("olmo-hybrid-7b").model, released.model), ::testing::IsEmpty());
}

// The published files have 685 B, since they contain embedding and head twice.
TEST(Presets, DeepseekV3HasAnMtpModule) {
  ModelConfig model = config_of("deepseek-v3").model;
  const ParameterCounts without = count_parameters(model);
  model.mtp_num_layers = 1;
  const ParameterCounts with = count_parameters(model);
  constexpr int64_t kExperts = 256 * 3 * 7168 * int64_t{2048};
  EXPECT_EQ(with.experts - without.experts, kExperts);
  EXPECT_EQ(with.exact, 682'636'472'320);
  EXPECT_EQ(with.exact + 2 * int64_t{129280} * 7168, 684'489'830'400);
}

// Tutel's example stores 64 factors in one tensor, of which its 12 layers read 47: 6 of 12 for skips, 24 for the
// embedding, and one or two for the values of each layer except layer 7; 4 pad the tensor for 8 ranks.
TEST(Presets, NanogptHasTheParametersOfTutelsExample) {
  constexpr int64_t kUnread = 64 - (6 + 24 + 11 + 6);
  const ParameterCounts counts = count_parameters(config_of("nanogpt-moe").model);
  EXPECT_EQ(counts.exact - counts.experts + kUnread, 699'859'008) << "shared";
  EXPECT_EQ(counts.experts / 8, 402'653'184) << "an eighth of the experts";
  EXPECT_EQ(counts.exact + kUnread, 3'921'084'480);
  EXPECT_EQ(config_of("nanogpt-moe").model.padded_vocab_size(), 50304);
}

TEST(Presets, AreValidOnOneRank) {
  for (const cli::Preset& preset : cli::presets()) {
    RunConfig config = config_of(std::string(preset.name));
    config.parallel.ranks = config.parallel.expert_model_parallel_size = 1;
    config.parallel.expert_tensor_parallel_size = 1;
    EXPECT_NO_THROW(config.validate()) << preset.name;
    EXPECT_GT(preset.summary().size(), 20U) << preset.name;
    EXPECT_NE(preset.summary().front(), '#') << preset.name;
  }
}

class PresetFlagTest : public ::testing::Test {
 protected:
  cli::GivenConfig given(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--runs-folder", own_ / "runs"};
    words.insert(words.end(), more.begin(), more.end());
    cli::Context context;
    CLI::App app("test", "test");
    RunConfig flags;
    const cli::ConfigArgs args(app, flags.fields());
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    return cli::read_given_config(context, flags, args);
  }

  TempFolder own_;
};

TEST_F(PresetFlagTest, PresetsOverrideTheRunAndAreOverriddenByFilesAndFlags) {
  using cli::ValueSource;
  write_text(own_ / "runs/default/config.toml", "weight_decay = 0.3\nlr_warmup_iters = 7\nclip_grad = 2.0\n");
  write_text(own_ / "mine.toml", "num_layers = 3\nhidden_size = 24\n");
  const cli::GivenConfig all = given({"--preset", "gpt2-124m", "--config", own_ / "mine.toml", "--hidden-size", "48"});
  EXPECT_EQ(all.preset, "gpt2-124m");
  EXPECT_EQ(all.config.model.num_layers, 3);
  EXPECT_EQ(all.config.model.hidden_size, 48);
  EXPECT_EQ(all.config.model.attention.num_attention_heads, 12);
  EXPECT_EQ(all.config.optimizer.weight_decay, 0.1);
  EXPECT_EQ(all.config.optimizer.clip_grad, 2.0);
  EXPECT_EQ(all.source("num_layers"), ValueSource::file);
  EXPECT_EQ(all.source("hidden_size"), ValueSource::flag);
  EXPECT_EQ(all.source("num_attention_heads"), ValueSource::preset);
  EXPECT_EQ(all.source("weight_decay"), ValueSource::preset);
  EXPECT_EQ(all.source("clip_grad"), ValueSource::saved_run);
  EXPECT_TRUE(all.said("num_attention_heads"));
}

TEST_F(PresetFlagTest, ErrorsAttributeInvalidValuesToThePreset) {
  expect_refusal(
      {"plan", "--preset", "gpt2-124m", "--hidden-size", "32", "--device", "cpu", "--runs-folder", own_ / "runs"}, 3,
      {"num_attention_heads = 12",
       "num_attention_heads = 12 is from the preset gpt2-124m: give "
       "--num-attention-heads to change it"});
}

TEST_F(PresetFlagTest, RefusalsOfUnknownNamesSuggestOne) {
  for (const char* command : {"plan", "train"})
    expect_refusal(
        {command, "--preset", "gpt2-142m"}, 3,
        {"--preset gpt2-142m: there is no such preset (did you mean gpt2-124m?); there are "
         "deepseek-v2-lite, deepseek-v3, deepseek-v3.2, deepseek-v4-flash, gemma-3-1b, gemma-3-270m, gemma-3-27b, "
         "gemma-3-4b, gemma-4-26b-a4b, gemma-4-31b, gemma-4-e2b, gemma-4-e4b, glm-4.5-air, glm-4.7-flash, glm-5, "
         "gpt-oss-120b, gpt-oss-20b, gpt2-124m, granite-4.0-h-small, granite-4.0-h-tiny, kimi-k2, "
         "kimi-linear-48b-a3b, lfm2-8b-a1b, llama2-7b, llama3-8b, megatron-moe-4b, minimax-m2, mixtral-8x22b, "
         "mixtral-8x7b, moonlight-16b-a3b, nanogpt-dense, nanogpt-moe, nemotron-3-nano-30b-a3b, nemotron-h-8b, "
         "olmo-hybrid-7b, olmo2-7b, olmo3-7b, olmoe-1b-7b, qwen3-235b-a22b, qwen3-30b-a3b, qwen3-8b, "
         "qwen3-next-80b-a3b, qwen3.5-0.8b, qwen3.5-35b-a3b, qwen3.5-9b"});
  expect_refusal({"bench", "step", "--preset", "mixtral"}, 3,
                 {"--preset mixtral: there is no such preset (did you mean mixtral-8x22b or mixtral-8x7b?)"});
  expect_refusal({"plan", "--preset", "GPT2"}, 3, {"(did you mean gpt2-124m?)"});
  expect_refusal({"plan", "--preset", "gpt-oss"}, 3, {"(did you mean gpt-oss-120b or gpt-oss-20b?)"});
}

TEST_F(PresetFlagTest, HelpListsEachOnOneLine) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"help", "train"}, {"help", "plan"}, {"bench", "step", "--help"}}) {
    const std::string help = witan(command).out;
    EXPECT_TRUE(contains(help, "--preset")) << help;
    for (const cli::Preset& preset : cli::presets())
      EXPECT_TRUE(contains(help, " " + std::string(preset.name) + ": " + std::string(preset.summary()) + "\n")) << help;
  }
}

}  // namespace
}  // namespace witan::test
