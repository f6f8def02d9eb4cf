// A sigmoid router with a bias that balances the load: scores and choices against plain loops, and runs whose results
// are independent of layout, recomputation and resuming.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "support/gradcheck.h"
#include "support/long_form.h"
#include "support/message_of.h"
#include "support/module.h"
#include "support/temp_folder.h"
#include "train/step/layouts/one_rank.h"
#include "train/step/saving_engines.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/router.h"
#include "witan/moe/routers/balance.h"

namespace witan {
namespace {

using kernels::Scores;
using testing::close;
using testing::gradcheck;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::Rank;
using testing::run_engine;
using testing::Trajectory;
using testing::values;
using testing::with_saving_engines;

const int64_t kSteps = testing::steps_of(3, 20);

// A token's scores and experts, computed from its logits by the definitions of kernels/moe/router.h.
struct Expected {
  Expected(const double* logits, const std::vector<float>& bias, size_t K) : p(bias.size()) {
    const size_t E = bias.size();
    std::vector<double> s(E);
    double sum = 0, exponentials = 0, chosen = 0;
    for (size_t e = 0; e < E; ++e) {
      sum += s[e] = 1 / (1 + std::exp(-logits[e]));
      exponentials += std::exp(logits[e]);
    }
    for (size_t e = 0; e < E; ++e) p[e] = s[e] / sum;
    lse = std::log(exponentials);
    ids.resize(E);
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::stable_sort(ids, std::greater<>(), [&](int32_t e) {
      return s[static_cast<size_t>(e)] + static_cast<double>(bias[static_cast<size_t>(e)]);
    });
    ids.resize(K);
    for (const int32_t id : ids) chosen += s[static_cast<size_t>(id)];
    for (const int32_t id : ids) weights.push_back(s[static_cast<size_t>(id)] / (K > 1 ? chosen : 1));
  }
  std::vector<double> p, weights;
  std::vector<int32_t> ids;
  double lse;
};

TEST(SigmoidRouter, MatchesItsDefinition) {
  Rank rank;
  const int64_t T = 40, E = 7;
  for (const int64_t K : {1, 3}) {
    Tape tape(rank.stream);
    const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 2);
    const Routing found = ops::route(tape, tape.input(logits), {K, Scores::sigmoid});
    double z = 0, entropy = 0, balance = 0;
    std::vector<double> weights, mass(E), counts(E);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < T; ++t) {
      const Expected token(logits.data<double>() + t * E, std::vector<float>(E), static_cast<size_t>(K));
      weights.insert(weights.end(), token.weights.begin(), token.weights.end());
      ids.insert(ids.end(), token.ids.begin(), token.ids.end());
      z += token.lse * token.lse / double(T);
      for (size_t e = 0; e < E; ++e) {
        mass[e] += token.p[e];
        entropy -= token.p[e] * std::log(token.p[e]) / double(T);
      }
    }
    for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
    for (size_t e = 0; e < E; ++e) balance += double(E) * mass[e] * counts[e] / double(T * T * K);
    EXPECT_TRUE(close(values(found.weights.value()), weights, 0, 1e-13));
    EXPECT_EQ(found.ids.to_vector<int32_t>(), ids);
    EXPECT_NEAR(found.record.loss(kBalanceLoss).value().data<double>()[0], balance, 1e-13);
    EXPECT_NEAR(found.record.loss(kZLoss).value().data<double>()[0], z, 1e-12);
    EXPECT_NEAR(found.record.value(kRouterEntropy).data<double>()[0], entropy, 1e-13);
  }
}

TEST(SigmoidRouter, GradientsMatchDifferences) {
  Rank rank;
  for (const auto& [B, S, E, K] :
       std::vector<std::array<int64_t, 4>>{{1, 5, 4, 2}, {1, 4, 6, 1}, {1, 3, 3, 3}, {1, 2, 1, 1}, {3, 2, 5, 2}}) {
    Tensor logits = rank.normal({B * S, E}, DType::f64, "jitter", 0.01);  // around values far enough apart
    for (int64_t i = 0; i < B * S * E; ++i)
      logits.data<double>()[i] += 0.4 * static_cast<double>((i * 5 + i / E) % E) - 0.8;
    for (const size_t which :
         {0, 1, 2, 3})  // each output separately, where the others' gradients are undefined, and all
      gradcheck(
          rank, "router",
          [=, B = B, K = K](Tape& tape, const std::vector<Var>& in) {
            const Routing routing = ops::route(tape, in[0], {K, Scores::sigmoid}, nullptr, B);
            const std::vector all = {routing.weights, routing.record.loss(kBalanceLoss), routing.record.loss(kZLoss)};
            return which == 3 ? all : std::vector{all[which]};
          },
          {logits});
  }
}

TEST(SigmoidRouter, LargeLogitsDoNotOverflow) {
  Rank rank;
  Tape tape(rank.stream);
  const Var logits = tape.input(rank.tensor<float>({2, 3}, {1e4F, -1e4F, 50, -1e4F, -1e4F, -1e4F}));
  const Routing routing = ops::route(tape, logits, {2, Scores::sigmoid});
  const std::vector<double> weights = values(routing.weights.value());
  for (const size_t k : {0, 1}) EXPECT_EQ(weights[k], 0.5);
  for (const size_t k : {2, 3}) EXPECT_EQ(weights[k], 0) << "all scores are zero";
  tape.backward({{routing.weights, {}}, {routing.record.loss(kBalanceLoss), {}}, {routing.record.loss(kZLoss), {}}});
  for (const double gradient : values(tape.gradient(logits))) EXPECT_TRUE(std::isfinite(gradient));
}

MoeConfig biased() {
  MoeConfig config;
  config.moe_router_score_function = "sigmoid";
  config.moe_router_enable_expert_bias = true;
  return config;
}

Buffer& buffer_of(const Module& module, const std::string& name) {
  const auto all = module.buffers();
  const auto found = std::ranges::find_if(all, [&](const Buffer* buffer) { return buffer->name().ends_with(name); });
  EXPECT_NE(found, all.end()) << name;
  return **found;
}

TEST(ExpertBias, ChangesTheChoiceButNotWeightsOrLosses) {
  Rank rank;
  const int64_t T = 30, D = 16;
  MoeConfig config = biased();
  const auto E = static_cast<size_t>(config.num_experts);
  const auto router =
      make_router({.stream = rank.stream, .dtype = DType::f64, .init_std = 0.3, .path = "router"}, config, D);
  std::vector<float> bias(E, 0);
  bias[2] = 0.3F;
  bias[5] = -0.5F;
  const Tensor x = rank.normal({T, D}, DType::f64, "x");
  Tape tape(rank.stream);
  const Routing before = router->forward(tape, tape.constant(x));
  rank.stream.write(buffer_of(*router, ".expert_bias").value(), bias.data());
  const Routing after = router->forward(tape, tape.constant(x));
  EXPECT_NE(before.ids.to_vector<int32_t>(), after.ids.to_vector<int32_t>());
  for (const char* loss : {kBalanceLoss, kZLoss})
    EXPECT_EQ(values(after.record.loss(loss).value()), values(before.record.loss(loss).value())) << loss;

  const Tensor& weight = router->parameters()[0]->value();
  std::vector<int64_t> counts(E);
  for (int64_t t = 0; t < T; ++t) {
    std::vector<double> logits(E);
    for (size_t e = 0; e < E; ++e)
      for (int64_t d = 0; d < D; ++d)
        logits[e] += x.data<double>()[t * D + d] * weight.data<double>()[static_cast<int64_t>(e) * D + d];
    const Expected token(logits.data(), bias, 2);
    for (size_t k = 0; k < 2; ++k) {
      const int64_t at = t * 2 + static_cast<int64_t>(k);
      EXPECT_EQ(after.ids.data<int32_t>()[at], token.ids[k]);
      EXPECT_NEAR(after.weights.value().data<double>()[at], token.weights[k], 1e-13);
      ++counts[static_cast<size_t>(token.ids[k])];
    }
  }
  EXPECT_EQ(after.counts.to_vector<int64_t>(), counts);
  EXPECT_EQ(after.kept.to_vector<int64_t>(), counts);
  testing::bind_gradients(rank.stream, *router);
  gradcheck(rank, "router",
            [&](Tape& on, const std::vector<Var>& in) {
              const Routing routing = router->forward(on, in[0]);
              return std::vector{routing.weights, routing.record.loss(kBalanceLoss)};
            },
            {x});
}

TEST(ExpertBias, MovesTowardsABalancedLoad) {
  Rank rank;
  const Tensor bias = rank.tensor<float>({4}, {0, 0.25F, -1, 2}), load = rank.stream.empty({4}, DType::i64);
  const Tensor step = rank.stream.zeros({kernels::kStepValues}, DType::f64);
  const float rate = 0.01F;
  std::vector<float> expected = {0, 0.25F, -1, 2};
  const std::vector<std::vector<int64_t>> loads = {
      {3, 4, 5, 4}, {0, 0, 0, 9}, {1, 2, 2, 2}};  // 7 / 4 is not an integer
  for (const bool skip : {false, true, false})
    for (const std::vector<int64_t>& of_step : loads) {
      std::ranges::copy(of_step, load.data<int64_t>());
      step.data<double>()[kernels::step_value::skip] = skip ? 1 : 0;
      kernels::update_expert_bias(rank.stream, bias, load, step, rate);
      const double mean = double(std::accumulate(of_step.begin(), of_step.end(), int64_t{0})) / 4;
      for (size_t e = 0; e < 4 && !skip; ++e) {
        if (mean > double(of_step[e])) expected[e] += rate;
        if (mean < double(of_step[e])) expected[e] -= rate;
      }
      EXPECT_EQ(bias.to_vector<float>(), expected);
    }
}

TEST(ExpertBias, RequiresScores) {
  MoeConfig config = biased();
  config.moe_router_topk = 1;  // a sigmoid of one expert learns
  config.validate(2);
  config = biased();
  config.moe_router_score_function = "softmax";
  EXPECT_NE(test::message_of<ConfigError>([&] {
              config.validate(2);
            }).find("moe_router_enable_expert_bias = true needs moe_router_score_function = \"sigmoid\""),
            std::string::npos);
  config.moe_router_pre_softmax = true;
  config.validate(2);
}

// Biases change by about the difference between scores, so choices change from step to step.
RunConfig recipe(const char* dtype) {
  RunConfig config = testing::divisible_config(dtype);
  config.model.moe.moe_router_score_function = "sigmoid";
  config.model.moe.moe_router_enable_expert_bias = true;
  config.model.moe.moe_router_bias_update_rate = 0.02;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  return laid_out(config, {});
}

const std::vector<LaidOut> kLayouts = {
    {"replicate=4"},
    {"shard=2"},
    {"shard=4,expert=2", kFsdp},
    {"context=2"},
    {"tensor=2,expert_tensor=1"},
    {"pipeline=2", "auto", 2},
    {"replicate=4,expert=2,expert_tensor=2"},
    {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
    {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
};

TEST(ExpertBiasLayouts, EqualOneRankInFloat64) {
  RunConfig config = recipe("float64");
  config.train.check_states = true;
  testing::expect_planned_steps_of_one_rank(config, kLayouts, kSteps);
  RunConfig fixed = config;
  fixed.model.moe.moe_router_bias_update_rate = 0;
  EXPECT_NE(run_engine(fixed, kSteps).losses, run_engine(config, kSteps).losses) << "the bias has no effect";
}

// Recomputed layers are counted once; dropped tokens are counted too.
TEST(ExpertBiasLayouts, WithFullRecomputeCapacityAndBalancedSequencesEqualOneRankInFloat64) {
  RunConfig config = recipe("float64");
  const Trajectory without = run_engine(config, kSteps);
  config.model.recompute_granularity = "full";
  testing::expect_equal(without, run_engine(config, kSteps), 1e-12, "full recompute");
  config.model.moe.moe_router_load_balancing_type = "seq_aux_loss";
  config.model.moe.moe_expert_capacity_factor = 0.75;
  testing::expect_planned_steps_of_one_rank(
      config, {{"context=2,tensor=2,expert_tensor=1"}, {"shard=2,pipeline=2", kFsdp, 2}}, kSteps);
}

TEST(ExpertBiasLayouts, DeterministicLayoutsHaveTheBitsOfOneRank) {
  RunConfig config = recipe("bfloat16");
  config.train.check_states = true;
  config.parallel.deterministic = true;
  testing::expect_bits_of_one_rank(config,
                                   {{"replicate=4,expert=2"},
                                    {"shard=4,expert=2", kFsdp},
                                    {"shard=2,pipeline=2", kFsdp, 2},
                                    {"replicate=2,shard=2,pipeline=2,expert=2"}},
                                   kSteps);
}

using Buffers = std::map<std::string, std::vector<double>>;

Buffers buffers_of(Engine& engine) {
  Buffers all;
  for (const StateTensor& tensor : engine.state()) {
    if (tensor.kind != StateTensor::Kind::buffer) continue;
    std::vector<double>& into = all[tensor.name];
    if (tensor.local.dtype() == DType::i64)
      for (const int64_t value : tensor.local.to_vector<int64_t>()) into.push_back(static_cast<double>(value));
    else
      into = values(tensor.local);
  }
  return all;
}

TEST(ExpertBias, FollowsTheLoadOfTrainingMicroBatchesOnly) {
  for (const LaidOut& layout : std::vector<LaidOut>{{}, {"context=2,tensor=2,expert_tensor=1"}, {"shard=2", kFsdp}}) {
    SCOPED_TRACE(described(layout));
    const RunConfig config = laid_out(recipe("float32"), layout);
    with_saving_engines(config, [&](Engine& engine, BackgroundSave&, const Layout& on, int rank) {
      const MoeConfig& moe = config.model.moe;
      std::vector<double> expected(static_cast<size_t>(moe.num_experts));
      for (int64_t step = 0; step < 3; ++step) {
        const auto batches = testing::own_batches(config, on, rank, step);
        engine.step(batches, step + 1, step);
        const Buffers after = buffers_of(engine);
        ASSERT_EQ(after.size(), 8U);  // two for each of four layers
        const std::vector<double>&load = after.at("layers.1.moe.router.tokens_per_expert"),
              &bias = after.at("layers.1.moe.router.expert_bias");
        const double total = std::accumulate(load.begin(), load.end(), 0.0);
        EXPECT_EQ(total, double(config.train.global_batch_size * config.data.seq_length * moe.moe_router_topk));
        for (size_t e = 0; e < expected.size(); ++e) {
          const double missing = total / double(expected.size()) - load[e];
          expected[e] += (missing > 0 ? 1 : missing < 0 ? -1 : 0) * moe.moe_router_bias_update_rate;
        }
        EXPECT_TRUE(close(bias, expected, 1e-7, 0));
        engine.evaluate(batches);
        EXPECT_EQ(buffers_of(engine), after);
      }
    });
  }
}

// One layout saves and another one resumes.
TEST(ExpertBias, IsResumedInAnotherLayout) {
  RunConfig config = recipe("float64");
  const auto train = [&](Engine& engine, const Layout& layout, int rank, const RunConfig& on, int64_t first) {
    std::vector<double> losses;
    for (int64_t step = first; step < first + 2; ++step)
      losses.push_back(engine.step(testing::own_batches(on, layout, rank, step), step + 1, step).loss);
    return losses;
  };
  std::vector<double> whole;
  Buffers last;
  with_saving_engines(config, [&](Engine& engine, BackgroundSave&, const Layout& layout, int rank) {
    train(engine, layout, rank, config, 0);
    whole = train(engine, layout, rank, config, 2);
    last = buffers_of(engine);
  });
  for (const LaidOut& writer : std::vector<LaidOut>{{}, {"shard=2,pipeline=2"}}) {
    const test::TempFolder folder;
    const RunConfig saved = laid_out(config, writer);
    with_saving_engines(saved, [&](Engine& engine, BackgroundSave& saving, const Layout& layout, int rank) {
      train(engine, layout, rank, saved, 0);
      saving.begin(folder.path(), {2, engine.state(), Json::object(), {}}, 1);
      saving.finish();
    });
    const Checkpoint checkpoint = open_checkpoint(folder / "step-2");
    for (const LaidOut& reader : std::vector<LaidOut>{{}, {"shard=2,expert=2", kFsdp}, {"tensor=2,pipeline=2"}}) {
      SCOPED_TRACE(cat("saved on ", described(writer), ", resumed on ", described(reader)));
      const RunConfig resumed = laid_out(config, reader);
      with_saving_engines(resumed, [&](Engine& engine, BackgroundSave& saving, const Layout& layout, int rank) {
        load_tensors(saving.world(), saving.stream(), checkpoint, engine.state());
        const std::vector<double> losses = train(engine, layout, rank, resumed, 2);
        EXPECT_TRUE(close(losses, whole, 0, 1e-9));
        for (const auto& [name, found] : buffers_of(engine)) EXPECT_EQ(found, last.at(name)) << name;
      });
    }
  }
}

}  // namespace
}  // namespace witan
