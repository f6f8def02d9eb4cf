// witan::Generation on a GPU: compared with the CPU and, in batch-invariant mode, with the training forward to the bit.
#include <algorithm>
#include <cmath>

#include "support/cuda_rank.h"
#include "support/model_variants.h"
#include "support/module.h"
#include "witan/generate/generation_batch.h"
#include "witan/kernels/gemm/product_scopes.h"

namespace witan {
namespace {

using testing::values;
using Tokens = std::vector<int32_t>;

// Sizes in whole packs that fill tiles, as those of models do.
ModelConfig gpu_model(const std::string& dtype, int64_t experts) {
  ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 128;
  config.vocab_size = 512;
  config.init_method_std = 0.15;
  config.dtype = dtype;
  config.mlp.ffn_hidden_size = 192;
  config.moe.num_experts = experts;
  config.moe.moe_ffn_hidden_size = 64;
  config.attention.num_attention_heads = 8;
  return config;
}

ModelConfig gpt_oss_model(const std::string& dtype) {
  ModelConfig config = gpu_model(dtype, 8);
  testing::add_gpt_oss_features(config, "15,0");
  config.attention.kv_channels = 32;
  return config;
}

ModelConfig deepseek_model(const std::string& dtype) {
  ModelConfig config = gpu_model(dtype, 8);
  testing::add_grouped_router(config, "[0,1,1]", 64);
  testing::add_latent_attention(config,
                                {.q_rank = 48, .kv_rank = 64, .head = 32, .rotated_head = 16, .value_head = 32});
  return config;
}

ModelConfig qwen_model(const std::string& dtype) {
  ModelConfig config = gpu_model(dtype, 8);
  config.attention.qk_layernorm = true;
  config.attention.kv_channels = 64;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

ModelConfig small_gemma_model(const std::string& dtype) {
  ModelConfig config = gpu_model(dtype, 0);
  testing::add_small_gemma4_features(config, "15,0");
  config.attention.kv_channels = 64;
  config.attention.window_kv_channels = config.hidden_size_per_layer_input = 32;
  return config;
}

std::vector<std::pair<std::string, ModelConfig>> models(const std::string& dtype) {
  return {{"dense", gpu_model(dtype, 0)},    {"experts", gpu_model(dtype, 8)},
          {"gpt-oss", gpt_oss_model(dtype)}, {"deepseek", deepseek_model(dtype)},
          {"qwen", qwen_model(dtype)},       {"small gemma", small_gemma_model(dtype)}};
}

std::vector<GenerationRequest> requests_of(const std::vector<int64_t>& lengths, double temperature) {
  std::vector<GenerationRequest> requests;
  for (const int64_t length : lengths) {
    GenerationRequest request;
    for (int64_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<int32_t>((i * i * 7 + length) % 512));
    request.options.max_tokens = 12;
    request.options.sampler.temperature = temperature;
    request.options.sampler.seed = static_cast<uint64_t>(length);
    request.top_logprobs = 0;
    request.prompt_logprobs = true;
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<float> logprobs_of(const witan::Generation& generation) {
  std::vector<float> logprobs;
  for (size_t i = 1; i < generation.prompt.size(); ++i) logprobs.push_back(generation.prompt[i].logprob.value());
  for (const GeneratedToken& token : generation.tokens) logprobs.push_back(token.logprob.value());
  return logprobs;
}

Tokens text_of(const GenerationRequest& request, const witan::Generation& generation) {
  Tokens text = request.prompt;
  for (const GeneratedToken& token : generation.tokens) text.push_back(token.token);
  return text;
}

class GenerationOnGpu : public testing::CudaTest {
 protected:
  Tensor on_gpu(const Shape& shape, const Tokens& ids) {
    const Tensor out = gpu().empty(shape, DType::i32);
    gpu().write(out, ids.data());
    return out;
  }
  // Computes logprobs as StagePasses does in batch-invariant mode: the text is a micro-batch, with tokens of others in
  // it. `policy`: as the objectives of policies and preferences, else as plain cross entropy.
  std::vector<float> trained_logprobs(Transformer& model, const Tokens& text, int64_t others, bool policy = false) {
    const auto T = static_cast<int64_t>(text.size()), B = others + 1;
    Tokens ids(static_cast<size_t>(others * T), 5), positions, targets = ids;
    ids.insert(ids.end(), text.begin(), text.end());
    targets.insert(targets.end(), text.begin() + 1, text.end());
    targets.push_back(0);
    for (int64_t b = 0; b < B; ++b)
      for (int32_t t = 0; t < T; ++t) positions.push_back(t);
    const kernels::RowProducts by_row;
    Tape tape(gpu());
    ModelInput input{on_gpu({B, T}, ids), {on_gpu({B, T}, positions), {}}};
    input.where.hints = {.one_sequence_per_row = true, .batch_invariant = true};
    ModelOutput out = model.forward(tape, input);
    const DType wide = accumulator(out.logits.dtype());
    const Tensor weights = gpu().empty({B * T}, wide);
    const Tensor ones = host.stream.empty({B * T}, wide);
    dispatch_floating(wide, [&]<class A>() { std::ranges::fill(ones.span<A>(), A(1.0f)); });
    gpu().write(weights, ones.raw());
    const Tensor wanted = on_gpu({B * T}, targets);
    const Tensor losses =
        policy ? model.token_losses(tape, std::move(out.logits), wanted, weights).losses.value()
               : model.loss(tape, std::move(out.logits), wanted, weights, ops::LossGradient::one).token_losses;
    const auto all = values(to_host(losses));
    std::vector<float> logprobs;
    for (int64_t t = 0; t + 1 < T; ++t) logprobs.push_back(-static_cast<float>(all[size_t(others * T + t)]));
    return logprobs;
  }
};

TEST_F(GenerationOnGpu, BatchInvariantLogprobsHaveTheBitsOfTraining) {
  for (const std::string dtype : {"bfloat16", "float32"})
    for (const auto& [name, config] : models(dtype)) {
      SCOPED_TRACE(cat(name, ", ", dtype));
      testing::Alone alone;
      Transformer model(gpu(), config, 8, alone);
      const auto requests = requests_of({5, 1, 70, 13}, 1.3);
      const auto generations = generate(gpu(), model, requests, {}, {.repeatable = true});
      for (size_t i = 0; i < requests.size(); ++i) {
        const Tokens text = text_of(requests[i], generations[i]);
        EXPECT_EQ(logprobs_of(generations[i]), trained_logprobs(model, text, 0)) << "request " << i;
        EXPECT_EQ(logprobs_of(generations[i]), trained_logprobs(model, text, 3)) << "request " << i << " beside others";
        EXPECT_EQ(logprobs_of(generations[i]), trained_logprobs(model, text, 0, true)) << "request " << i << ", policy";
        for (const bool recorded : {false, true}) {
          const auto by_itself =
              generate(gpu(), model, std::span(&requests[i], 1), {}, {.repeatable = true, .recorded = recorded});
          EXPECT_EQ(logprobs_of(by_itself[0]), logprobs_of(generations[i])) << "request " << i << " alone";
        }
      }
    }
}

// The difference that two roundings leave between logprobs: the largest or, if tokens may choose other experts, which
// changes only those few tokens, the median.
double apart(const std::vector<float>& got, const std::vector<float>& expected, bool routes_may_differ) {
  std::vector<double> differences;
  for (size_t i = 0; i < got.size(); ++i) {
    differences.push_back(std::abs(double(got[i]) - double(expected[i])));
    if (std::isnan(differences.back())) return differences.back();
  }
  std::ranges::sort(differences);
  return differences[routes_may_differ ? differences.size() / 2 : differences.size() - 1];
}

// The GPU's fast mode against the CPU: the same texts, with logprobs that differ by roundings. Greedy choices with
// random weights are not always clear, so the CPU scores the GPU's text.
TEST_F(GenerationOnGpu, LogprobsAgreeWithTheCpu) {
  for (const auto& [dtype, tolerance] : {std::pair{"float64", 1e-6}, {"float32", 2e-4}, {"bfloat16", 0.1}})
    for (const auto& [name, config] : models(dtype)) {
      SCOPED_TRACE(cat(name, ", ", dtype));
      testing::Alone alone;
      Transformer model(gpu(), config, 8, alone), on_cpu(host.stream, config, 8, alone);
      const auto requests = requests_of({5, 1, 300, 13}, 1.3);
      const auto generations = generate(gpu(), model, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        GenerationRequest scored = requests[i];
        scored.prompt = text_of(requests[i], generations[i]);
        scored.options.max_tokens = 0;
        const auto expected = logprobs_of(generate(host.stream, on_cpu, std::span(&scored, 1))[0]);
        const auto got = logprobs_of(generations[i]);
        ASSERT_EQ(got.size(), expected.size());
        EXPECT_LT(apart(got, expected, config.compute_dtype() == DType::bf16), tolerance) << "request " << i;
      }
    }
}

// Texts end at different times, so that there are graphs of several sizes.
TEST_F(GenerationOnGpu, RecordedStepsHaveTheBitsOfEagerOnes) {
  for (const auto& [name, config] : models("bfloat16"))
    for (const bool repeatable : {false, true}) {
      SCOPED_TRACE(cat(name, repeatable ? ", repeatable" : ""));
      testing::Alone alone;
      Transformer model(gpu(), config, 8, alone);
      auto requests = requests_of({5, 1, 70, 13}, 1.3);
      for (size_t i = 0; i < requests.size(); ++i) requests[i].options.max_tokens = 6 + 4 * static_cast<int64_t>(i);
      const auto eager = generate(gpu(), model, requests, {}, {.repeatable = repeatable}),
                 recorded = generate(gpu(), model, requests, {}, {.repeatable = repeatable, .recorded = true});
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(text_of(requests[i], recorded[i]), text_of(requests[i], eager[i])) << "request " << i;
        EXPECT_EQ(logprobs_of(recorded[i]), logprobs_of(eager[i])) << "request " << i;
      }
    }
}

// Each text is what it is alone, and the tokens are those that the CPU's sampler chooses from the same logits.
TEST_F(GenerationOnGpu, TextsOfABatchHaveTheirOwnOptions) {
  const std::vector<SamplerOptions> options = {{.temperature = 1.5, .seed = 5},
                                               {.temperature = 0},
                                               {.temperature = 0.8, .top_k = 7, .seed = 6},
                                               {.temperature = 1.2, .top_p = 0.7, .repetition_penalty = 1.5},
                                               {.temperature = 2, .top_k = 20, .top_p = 0.9, .min_p = 0.05, .seed = 7}};
  const ModelConfig config = gpu_model("bfloat16", 4);
  testing::Alone alone;
  Transformer model(gpu(), config, 8, alone);
  auto requests = requests_of({5, 1, 70, 13, 30}, 1);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].options.sampler = options[i];
  const auto together = generate(gpu(), model, requests, {}, {.repeatable = true, .recorded = true});
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto by_itself = generate(gpu(), model, std::span(&requests[i], 1), {}, {.repeatable = true});
    EXPECT_EQ(text_of(requests[i], together[i]), text_of(requests[i], by_itself[0])) << "request " << i;
    EXPECT_EQ(logprobs_of(together[i]), logprobs_of(by_itself[0])) << "request " << i;
  }
}

// A conversation whose next question reuses cached keys and values: with the bits of computing everything again if
// batch invariance is asked for, otherwise up to roundings, which the CPU measures.
TEST_F(GenerationOnGpu, ReusesTheKeysAndValuesOfAPrefix) {
  for (const bool repeatable : {true, false})
    for (const auto& [name, config] : models(repeatable ? "bfloat16" : "float32")) {
      SCOPED_TRACE(cat(name, repeatable ? ", repeatable" : ""));
      testing::Alone alone;
      Transformer model(gpu(), config, 8, alone), on_cpu(host.stream, config, 8, alone);
      const GenerationMode mode{.repeatable = repeatable, .recorded = true};
      GenerationBatch batch(gpu(), model, {1, 200}, mode);
      GenerationRequest request = requests_of({90}, 1.3)[0];
      request.prompt_logprobs = false;
      int64_t cached = 0;
      for (const int64_t more : {3, 1, 9}) {
        batch.admit(request);
        while (!batch.idle()) batch.step();
        const witan::Generation kept = batch.take_finished().at(0).second;
        EXPECT_EQ(kept.cached_prompt_tokens, cached);
        const Tokens text = text_of(request, kept);
        if (repeatable) {
          const witan::Generation fresh = generate(gpu(), model, std::span(&request, 1), {}, mode)[0];
          EXPECT_EQ(text, text_of(request, fresh));
          EXPECT_EQ(logprobs_of(kept), logprobs_of(fresh));
        } else {
          GenerationRequest scored = request;
          scored.prompt = text;
          scored.prompt_logprobs = true;
          scored.options.max_tokens = 0;
          const auto all = logprobs_of(generate(host.stream, on_cpu, std::span(&scored, 1))[0]);
          const auto got = logprobs_of(kept);
          for (size_t t = 0; t < got.size(); ++t) EXPECT_NEAR(got[t], all[all.size() - got.size() + t], 2e-4) << t;
        }
        cached = static_cast<int64_t>(text.size()) - 1;
        request.prompt = text;
        for (int64_t i = 0; i < more; ++i) request.prompt.push_back(static_cast<int32_t>(7 * i + more));
      }
    }
}

// Caches in FP8, of heads and of latents, beside the CPU's exact ones. On the CPU, 16 such sets of texts lay up to 0.15
// (dense) and 0.27 (experts, which may be others) from them, in the mean over generated tokens; log probabilities of
// other tokens lie 2.2 apart.
TEST_F(GenerationOnGpu, LogprobsFromFp8AreNearTheCpu) {
  for (const auto& [name, config] : models("bfloat16"))
    for (const std::string latents : {"auto", "false"}) {
      SCOPED_TRACE(cat(name, ", latents ", latents));
      testing::Alone alone;
      Transformer model(gpu(), config, 8, alone), on_cpu(host.stream, config, 8, alone);
      const auto requests = requests_of({5, 1, 300, 13}, 1.3);
      GenerationMode mode{.cache = {"fp8_e4m3", latents}};
      const auto eager = generate(gpu(), model, requests, {}, mode);
      mode.recorded = true;
      const auto recorded = generate(gpu(), model, requests, {}, mode);
      double sum = 0, tokens = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(logprobs_of(recorded[i]), logprobs_of(eager[i])) << "request " << i;
        GenerationRequest scored = requests[i];
        scored.prompt = text_of(requests[i], eager[i]);
        scored.options.max_tokens = 0;
        const auto expected = logprobs_of(generate(host.stream, on_cpu, std::span(&scored, 1))[0]);
        const auto got = logprobs_of(eager[i]);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t t = requests[i].prompt.size() - 1; t < got.size(); ++t, ++tokens)
          sum += std::abs(double(got[t]) - double(expected[t]));
      }
      EXPECT_LT(sum / tokens, config.moe.num_experts > 0 ? 0.5 : 0.25);
    }
}

TEST_F(GenerationOnGpu, NeedsThePlannedMemoryOfOtherCaches) {
  for (const CacheOptions& cache : {CacheOptions{}, {"fp8_e4m3", "auto"}, {"fp8_e4m3", "false"}}) {
    const auto requests = requests_of({5, 1, 70, 13}, 0);
    testing::Alone alone;
    Stream fresh({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{1} << 30), host.pool);
    const GenerationMode mode{.recorded = true, .cache = cache};
    Transformer model(fresh, deepseek_model("bfloat16"), 8, alone);
    generate(fresh, model, requests, {}, mode);
    Stream meta({Device::Kind::meta, 0, Device::Kind::cuda}, Arena::meta(), host.pool);
    Transformer planned(meta, deepseek_model("bfloat16"), 8, alone);
    generate(meta, planned, requests, {}, mode);
    EXPECT_EQ(meta.arena().high_water(), fresh.arena().high_water());
  }
}

TEST_F(GenerationOnGpu, NeedsItsPlannedMemory) {
  for (const GenerationMode mode :
       {GenerationMode{}, {.repeatable = true}, {.recorded = true}, {.repeatable = true, .recorded = true}}) {
    const ModelConfig config = gpt_oss_model("bfloat16");
    const auto requests = requests_of({5, 1, 70, 13}, 0);
    testing::Alone alone;
    // A stream of its own, whose arena has held nothing else.
    Stream fresh({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{1} << 30), host.pool);
    Transformer model(fresh, config, 8, alone);
    generate(fresh, model, requests, {}, mode);
    Stream meta({Device::Kind::meta, 0, Device::Kind::cuda}, Arena::meta(), host.pool);
    Transformer planned(meta, config, 8, alone);
    generate(meta, planned, requests, {}, mode);
    EXPECT_EQ(meta.arena().high_water(), fresh.arena().high_water());
  }
}

}  // namespace
}  // namespace witan
