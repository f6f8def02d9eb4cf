// Frozen matrices that are kept as codes: adapters on them are trained to the bit as on their decoded copy, in every
// layout alike, and no layout changes a code.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/long_form.h"
#include "support/message_of.h"
#include "train/step/layouts/one_rank.h"
#include "witan/model/frozen.h"
#include "witan/tensor/host.h"
#include "witan/train/config/trained_parameters.h"

namespace witan {
namespace {

using kernels::WeightFormat;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

const int64_t kCodedSteps = testing::steps_of(3, 20);

// Adapters of some matrices; attention, a dense MLP, experts, a shared expert and an untied head.
RunConfig coded(const std::string& format, const char* dtype = "float64") {
  RunConfig config = testing::divisible_config(dtype);
  const int64_t group = format == "mxfp4" ? 32 : format == "nf4" ? 64 : 128;
  config.model.hidden_size = group;
  config.model.mlp.ffn_hidden_size = group;
  config.model.attention.num_attention_heads = 4;
  config.model.attention.num_query_groups = 2;
  config.model.attention.kv_channels = group / 4;
  config.model.num_layers = 2;
  config.model.vocab_size = 64;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.moe.num_experts = 4;
  config.model.moe.moe_shared_expert_intermediate_size = group;
  config.model.moe.moe_layer_freq = "([0]*1+[1]*1)";
  config.train.global_batch_size = 4;
  config.optimizer.lr = 1e-2;
  config.model.lora_rank = 3;
  config.model.lora_alpha = 7;
  config.model.frozen_format = format;
  config.model.frozen_head_format = "same";
  return laid_out(config, {});
}

const std::vector<LaidOut> kCodedLayouts = {
    {"replicate=2"}, {"shard=4", "optim"}, {"shard=2", "optim_grads"}, {"shard=4", kFsdp},
    {"context=2"},   {"pipeline=2"},       {"replicate=4,expert=4"},   {"shard=2,expert=2", kFsdp},
};
const std::vector<LaidOut> kDividedLayouts = {
    {"tensor=2,expert_tensor=1"},
    {"shard=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
};

TEST(FrozenFormats, EqualOneRankInFloat64AndAsPlanned) {
  for (const char* format : {"nf4", "mxfp4", "int4", "fp8"}) {
    SCOPED_TRACE(format);
    const bool first = std::string(format) == "nf4";
    testing::expect_planned_steps_of_one_rank(coded(format), first ? kCodedLayouts : std::vector{kCodedLayouts[3]},
                                              kCodedSteps);
  }
}

TEST(FrozenFormats, OfDividedMatricesEqualOneRankInFloat64) {
  RunConfig config = coded("mxfp4");
  config.model.hidden_size = config.model.mlp.ffn_hidden_size = config.model.moe.moe_shared_expert_intermediate_size =
      64;
  config.model.attention.kv_channels = 16;
  testing::expect_planned_steps_of_one_rank(config, kDividedLayouts, kCodedSteps);
  config.model.lora_target_modules = "q_proj,o_proj";
  testing::expect_planned_steps_of_one_rank(config, {{"tensor=2,expert_tensor=2"}}, kCodedSteps);
}

TEST(FrozenFormats, RecomputationChangesNoBit) {
  testing::expect_recomputation_changes_no_bit(coded("nf4", "float32"), 2);
}

// Puts the values of the coded engine's matrices into the other engine's.
void decode_into(Engine& plain, const Engine& codes) {
  std::map<std::string, Parameter*> named;
  for (Parameter* parameter : plain.parameters()) named[parameter->name()] = parameter;
  int64_t decoded = 0;
  for (const Parameter* parameter : codes.parameters()) {
    Parameter& to = *named.at(parameter->name());
    if (!parameter->in_codes()) continue;
    ++decoded;
    const kernels::WeightFormatTraits& traits = kernels::traits_of(parameter->spec().format);
    const kernels::Codes& from = parameter->codes();
    std::vector<float> scales(static_cast<size_t>(from.scales.elements())), values(static_cast<size_t>(to.elements()));
    dispatch_floating(traits.scale,
                      [&]<class T>() { std::copy_n(from.scales.data<T>(), scales.size(), scales.begin()); });
    const std::span<const uint32_t> words(reinterpret_cast<const uint32_t*>(from.words.data<int32_t>()),
                                          static_cast<size_t>(from.words.elements()));
    kernels::decode_weights_on_host(parameter->spec().format, words, scales, values);
    dispatch_floating(to.spec().dtype, [&]<class T>() {
      std::ranges::transform(values, to.value_shard().data<T>(), [](float value) { return T(value); });
    });
  }
  EXPECT_GT(decoded, 10);
}

TEST(FrozenFormats, TrainAdaptersToTheBitAsTheDecodedCopyDoes) {
  for (const char* dtype : {"float64", "bfloat16"})
    for (const char* format : {"nf4", "mxfp4", "int4", "fp8"}) {
      SCOPED_TRACE(cat(format, " ", dtype));
      const RunConfig config = coded(format, dtype);
      RunConfig plain = config;
      plain.model.frozen_format = plain.model.frozen_head_format = "dtype";
      std::vector<double> losses, norms;
      testing::with_engines_in_world(config, [&](ThreadWorld&, Stream&, const Groups&, Engine& codes) {
        testing::with_engines_in_world(plain, [&](ThreadWorld&, Stream&, const Groups& groups, Engine& copy) {
          decode_into(copy, codes);
          for (int64_t step = 0; step < 3; ++step) {
            const auto batches = testing::own_batches(config, groups.layout(), 0, step);
            const StepResult a = codes.step(batches, step + 1, step), b = copy.step(batches, step + 1, step);
            EXPECT_EQ(a.loss, b.loss) << step;
            EXPECT_EQ(a.gradient_norm, b.gradient_norm) << step;
          }
        });
      });
    }
}

TEST(FrozenFormats, TakeLessMemory) {
  RunConfig config = coded("nf4", "bfloat16");
  config.model.num_layers = 8;
  config.model.moe.moe_layer_freq = "1";
  config.model.moe.num_experts = 8;
  RunConfig plain = config;
  plain.model.frozen_format = plain.model.frozen_head_format = "dtype";
  const int64_t of_codes = make_plan(resolve(config, {})).arena_bytes();
  EXPECT_LT(of_codes, make_plan(resolve(plain, {})).arena_bytes() * 3 / 4);
}

// Formats by the model's keys, for all parameters.
std::map<std::string, WeightFormat> formats_of(const RunConfig& config) {
  std::map<std::string, WeightFormat> all;
  for (const ParameterSpec& spec : all_parameters(config.model)) all[spec.name] = spec.format;
  return all;
}

TEST(FrozenFormats, AreOfFrozenMatricesWhoseRowsAreWholeGroups) {
  RunConfig config = coded("nf4");
  auto formats = formats_of(config);
  EXPECT_EQ(formats.at("layers.0.attention.q_proj.weight"), WeightFormat::nf4);
  EXPECT_EQ(formats.at("head.weight"), WeightFormat::nf4);
  for (const auto& [name, format] : formats) {
    const bool kept = name.find("lora_") != std::string::npos || name.find("norm") != std::string::npos ||
                      name.find("router") != std::string::npos || name == "embedding.weight";
    EXPECT_EQ(format == WeightFormat::none, kept) << name;
  }

  config.model.frozen_head_format = "dtype";
  config.model.frozen_experts_format = "mxfp4";
  formats = formats_of(config);
  EXPECT_EQ(formats.at("head.weight"), WeightFormat::none);
  EXPECT_EQ(formats.at("layers.0.attention.q_proj.weight"), WeightFormat::nf4);
  for (const auto& [name, format] : formats)
    if (name.find(".experts.") != std::string::npos && name.find("lora_") == std::string::npos) {
      EXPECT_EQ(format, WeightFormat::mxfp4) << name;
    }

  config.model.mlp.ffn_hidden_size = 96;  // three groups of 32, none of 64
  config.model.frozen_experts_format = "same";
  formats = formats_of(config);
  EXPECT_EQ(formats.at("layers.0.mlp.down_proj.weight"), WeightFormat::none);
  EXPECT_EQ(formats.at("layers.0.mlp.gate_up_proj.weight"), WeightFormat::nf4);

  config.model.lora_rank = 0;
  config.model.freeze = "layers.0.*";
  formats = formats_of(config);
  EXPECT_EQ(formats.at("layers.0.attention.q_proj.weight"), WeightFormat::nf4);
  EXPECT_EQ(formats.at("layers.1.attention.q_proj.weight"), WeightFormat::none) << "it is trained";
}

TEST(FrozenFormats, RefuseToSplitGroups) {
  const RunConfig config = laid_out(coded("nf4"), {"tensor=2,expert_tensor=1"});
  EXPECT_EQ(
      test::message_of<ConfigError>([&] { run_engine(config, 1); }),
      "frozen_format: layers.0.attention.o_proj.weight is [64, 32] on a rank, and nf4 codes rows in groups of 64: "
      "lower tensor_model_parallel_size or expert_tensor_parallel_size, or take another format");
}

}  // namespace
}  // namespace witan
