// MoE models initialised from dense ones first compute the same values.
#include "witan/train/weights/upcycle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/tensor/host.h"
#include "witan/train/config/saved_config.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;
using testing::laid_out;
using testing::LaidOut;
using testing::with_rank_engines;
using Weights = std::map<std::string, std::vector<double>>;

constexpr int64_t kWidth = 16, kUnits = 24, kExperts = 4;

RunConfig dense_config() {
  RunConfig config;
  config.model.dtype = "float64";
  config.model.num_layers = 2;
  config.model.hidden_size = kWidth;
  config.model.vocab_size = 64;
  config.model.mlp.ffn_hidden_size = kUnits;
  config.model.moe.num_experts = 0;
  config.data.seq_length = 16;
  config.train.train_iters = 30;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 4;
  config.train.sample_tokens = 0;
  return laid_out(config, {});
}

double first_loss(const RunConfig& config, Engine& engine, const Groups& groups) {
  return engine.step(testing::own_batches(config, groups.layout(), groups.rank(), 0), 1, 0).loss;
}

class Upcycle : public ::testing::Test {
 protected:
  // Trains the dense model for two steps, saves it, and returns its loss on the next batch. `more`: an additional
  // tensor that no model has.
  double save_dense(const RunConfig& config, const std::string& more = "") {
    double loss = 0;
    with_rank_engines(config, [&](Stream& stream, const Groups& groups, Engine& engine, int rank) {
      const auto batches = [&](int64_t step) { return testing::own_batches(config, groups.layout(), rank, step); };
      for (int64_t step = 1; step <= 2; ++step) engine.step(batches(step), step, step - 1);
      CheckpointContent content;
      content.step = 2;
      content.tensors = engine.state();
      if (!more.empty()) content.tensors.push_back({more, stream.zeros({3}, DType::f64), {3}, {0, 3}});
      content.files = {{"config.toml", config_to_save(config)}, {"tokenizer.json", "{}"}};
      save_checkpoint(groups.host(), stream, folder_ / "dense/checkpoints", content);
      if (more.empty()) loss = engine.step(batches(0), 3, 2).loss;  // otherwise the arena is larger than for a step
    });
    return loss;
  }
  RunConfig moe_config(const std::string& method, const LaidOut& layout = {}) const {
    RunConfig config = dense_config();
    config.model.moe.num_experts = kExperts;
    config.model.moe.moe_router_topk = 2;
    config.train.upcycle = "dense";
    config.train.upcycle_method = method;
    config.train.runs_folder = folder_.path();
    return laid_out(config, layout);
  }
  // The loss of the first step. `weights` receives the initial weights.
  double first_loss_of(const RunConfig& config, Weights* weights = nullptr) {
    double loss = 0;
    std::mutex mutex;
    with_rank_engines(config, [&](Stream& stream, const Groups& groups, Engine& engine, int rank) {
      Upcycling upcycling(config);
      const std::vector<StateTensor> state = engine.state();
      upcycling.fill(stream, state);
      for (const StateTensor& tensor : state) {
        if (!weights || !tensor.writes || tensor.kind != StateTensor::Kind::value) continue;
        const std::scoped_lock lock(mutex);
        std::vector<double>& whole = (*weights)[tensor.name];
        whole.resize(static_cast<size_t>(tensor.global_shape.elements()));
        const std::vector<double> own = testing_values(tensor.local);
        for (size_t i = 0; i < own.size(); ++i)
          whole[static_cast<size_t>(tensor.region.global(static_cast<int64_t>(i)))] = own[i];
      }
      const double found = first_loss(config, engine, groups);
      if (rank == 0) loss = found;
    });
    return loss;
  }
  static std::vector<double> testing_values(const Tensor& tensor) {
    std::vector<double> out;
    dispatch_floating(tensor.dtype(), [&]<class T>() {
      for (const T value : tensor.span<T>()) out.push_back(static_cast<double>(value));
    });
    return out;
  }
  std::vector<double> dense_tensor(const std::string& name) const {
    const Checkpoint checkpoint = open_checkpoint(folder_ / "dense/checkpoints/step-2");
    ThreadPool pool(1);
    Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 24), pool);
    const Manifest::Entry& entry = checkpoint.manifest.tensors.at(name);
    const Tensor whole = stream.empty(entry.shape, entry.dtype);
    load_tensors(checkpoint, {{name, whole, entry.shape, {0, entry.shape.elements()}}}, Extra::allow);
    return testing_values(whole);
  }

  TempFolder folder_;
};

const std::vector<LaidOut> kLayouts = {{""},
                                       {"replicate=2,expert=2"},
                                       {"tensor=2,expert=1,expert_tensor=2"},
                                       {"pipeline=2"},
                                       {"shard=2,context=2,expert=4", "optim_grads_params"}};

TEST_F(Upcycle, CopiesMatchTheDenseModelInEveryLayout) {
  const double dense = save_dense(dense_config());
  for (const LaidOut& layout : kLayouts) {
    RunConfig config = moe_config("copied", layout);
    EXPECT_NEAR(first_loss_of(config), dense, 1e-9 * dense) << testing::described(layout);
    config.model.moe.moe_router_score_function = "sigmoid";
    EXPECT_NEAR(first_loss_of(config), dense, 1e-9 * dense) << "sigmoid, " << testing::described(layout);
  }
}

// MLPs without a gate, in a model with some dense layers.
TEST_F(Upcycle, CopiesOfUngatedMlpsInSomeLayersMatch) {
  RunConfig small = dense_config();
  small.model.mlp.swiglu = false;
  const double dense = save_dense(small);
  RunConfig config = moe_config("copied");
  config.model.mlp.swiglu = false;
  config.model.moe.moe_layer_freq = "[0,1]";
  EXPECT_NEAR(first_loss_of(config), dense, 1e-9 * dense);
}

TEST_F(Upcycle, SlicesMatchTheDenseModelInEveryLayout) {
  const double dense = save_dense(dense_config());
  for (const LaidOut& layout : kLayouts) {
    RunConfig config = moe_config("granular", layout);
    config.model.moe.moe_ffn_hidden_size = kUnits / 2;
    config.model.moe.num_experts = 8;
    config.model.moe.moe_router_topk = 4;
    EXPECT_NEAR(first_loss_of(config), dense, 1e-9 * dense) << testing::described(layout);
  }
}

// Unnormalised weights sum to K / E only on average, but exactly if all experts are selected.
TEST_F(Upcycle, ScalesForUnnormalisedWeights) {
  const double dense = save_dense(dense_config());
  RunConfig config = moe_config("copied");
  config.model.moe.moe_router_pre_softmax = true;
  config.model.moe.moe_router_topk = kExperts;
  EXPECT_NEAR(first_loss_of(config), dense, 1e-9 * dense);
  config.model.moe.moe_router_topk = 1;
  EXPECT_DOUBLE_EQ(Upcycling(config).scale(), kExperts);
  EXPECT_NEAR(first_loss_of(config), dense, 0.02 * dense);
}

// The score of a single expert is not normalised: it is that of a logit of 0.
TEST_F(Upcycle, ScalesForTheScoreFunctionOfASingleExpert) {
  const double dense = save_dense(dense_config());
  RunConfig config = moe_config("copied");
  config.model.moe.moe_router_score_function = "sqrtsoftplus";
  config.model.moe.moe_router_topk_scaling_factor = 2.5;
  EXPECT_DOUBLE_EQ(Upcycling(config).scale(), 1 / 2.5);
  EXPECT_NEAR(first_loss_of(config), dense, 1e-9 * dense);
  config.model.moe.moe_router_topk_scaling_factor = 1;
  config.model.moe.moe_router_topk = 1;
  EXPECT_DOUBLE_EQ(Upcycling(config).scale(), 1 / std::sqrt(std::log(2.0)));
  config.model.moe.moe_router_score_function = "sigmoid";
  EXPECT_DOUBLE_EQ(Upcycling(config).scale(), 2);
}

TEST_F(Upcycle, EveryExpertEqualsTheDenseMlpBitwise) {
  save_dense(dense_config());
  Weights weights;
  first_loss_of(moe_config("copied"), &weights);
  for (const char* matrix : {"gate_up_proj", "down_proj"}) {
    const std::vector<double> dense = dense_tensor(cat("layers.1.mlp.", matrix, ".weight"));
    const std::vector<double>& experts = weights.at(cat("layers.1.moe.experts.", matrix));
    ASSERT_EQ(experts.size(), kExperts * dense.size());
    for (size_t i = 0; i < experts.size(); ++i) ASSERT_EQ(experts[i], dense[i % dense.size()]) << matrix << " " << i;
  }
  EXPECT_EQ(weights.at("layers.0.attention.q_proj.weight"), dense_tensor("layers.0.attention.q_proj.weight"));
}

// The noise has the given size, differs between experts, and is the same in every layout.
TEST_F(Upcycle, NoiseHasItsDeviationInEveryLayout) {
  save_dense(dense_config());
  RunConfig config = moe_config("copied");
  config.train.upcycle_noise = 0.1;
  Weights weights, divided;
  first_loss_of(config, &weights);
  first_loss_of(laid_out(config, {"shard=2,context=2,expert=4", "optim_grads_params"}), &divided);
  EXPECT_TRUE(weights == divided);
  const std::vector<double> dense = dense_tensor("layers.0.mlp.down_proj.weight");
  const std::vector<double>& experts = weights.at("layers.0.moe.experts.down_proj");
  double square = 0, of_dense = 0;
  for (size_t i = 0; i < experts.size(); ++i) square += std::pow(experts[i] - dense[i % dense.size()], 2);
  for (const double value : dense) of_dense += value * value;
  const double relative = std::sqrt(square / static_cast<double>(kExperts) / of_dense);
  EXPECT_NEAR(relative, 0.1, 0.01);
  EXPECT_NE(experts[0], experts[dense.size()]);
}

// Half of each expert's hidden units are reinitialised, the same ones in gate, up and down; the others are copies.
TEST_F(Upcycle, ReinitialisedUnitsHaveTheDistributionOfTheOldOnes) {
  save_dense(dense_config());
  Weights weights, divided;
  first_loss_of(moe_config("drop"), &weights);
  first_loss_of(moe_config("drop", {"tensor=2,expert=1,expert_tensor=2"}), &divided);
  EXPECT_TRUE(weights == divided);
  const auto D = static_cast<size_t>(kWidth), F = static_cast<size_t>(kUnits);
  const std::vector<double> first = dense_tensor("layers.0.mlp.gate_up_proj.weight"),
                            second = dense_tensor("layers.0.mlp.down_proj.weight");
  const std::vector<double>&firsts = weights.at("layers.0.moe.experts.gate_up_proj"),
        &seconds = weights.at("layers.0.moe.experts.down_proj");
  std::vector<std::vector<bool>> anew;
  for (size_t e = 0; e < static_cast<size_t>(kExperts); ++e) {
    std::vector<bool>& of_expert = anew.emplace_back();
    double drawn = 0, replaced = 0;
    for (size_t u = 0; u < F; ++u) {
      const auto differs = [&](size_t row) {
        size_t count = 0;
        for (size_t d = 0; d < D; ++d) count += firsts[(e * 2 * F + row) * D + d] != first[row * D + d];
        EXPECT_TRUE(count == 0 || count == D) << "row " << row;
        return count > 0;
      };
      of_expert.push_back(differs(u));
      EXPECT_EQ(differs(F + u), of_expert.back()) << "up of unit " << u;
      for (size_t d = 0; d < D; ++d) {
        const double is = seconds[(e * D + d) * F + u], was = second[d * F + u];
        EXPECT_EQ(is != was, of_expert.back()) << "down of unit " << u;
        drawn += of_expert.back() ? is * is : 0;
        replaced += of_expert.back() ? was * was : 0;
      }
    }
    EXPECT_EQ(std::ranges::count(of_expert, true), kUnits / 2);
    EXPECT_NEAR(std::sqrt(drawn / replaced), 1, 0.2);
  }
  EXPECT_NE(anew[0], anew[1]);
}

// The masters of a bfloat16 model come from the dense model's float32 masters.
TEST_F(Upcycle, CopiesMastersOfNarrowValues) {
  RunConfig narrow = dense_config();
  narrow.model.dtype = "bfloat16";
  save_dense(narrow);
  RunConfig config = moe_config("copied");
  config.model.dtype = "bfloat16";
  const std::vector<double> master = dense_tensor("master/layers.0.mlp.down_proj.weight");
  with_rank_engines(config, [&](Stream& stream, const Groups&, Engine& engine, int) {
    const std::vector<StateTensor> state = engine.state();
    Upcycling(config).fill(stream, state);
    for (const StateTensor& tensor : state) {
      if (tensor.name != "master/layers.0.moe.experts.down_proj") continue;
      std::vector<float> joined;
      for_joined_bytes(tensor.local, tensor.remainder, [&](const std::byte* bytes, int64_t count) {
        const auto* values = reinterpret_cast<const float*>(bytes);
        joined.insert(joined.end(), values, values + count / 4);
      });
      ASSERT_FALSE(joined.empty());
      for (size_t i = 0; i < joined.size(); ++i)
        ASSERT_EQ(joined[i],
                  master[static_cast<size_t>(tensor.region.global(static_cast<int64_t>(i))) % master.size()]);
    }
  });
}

TEST_F(Upcycle, NothingIsLostSilently) {
  save_dense(dense_config());
  const auto expect = [&](const RunConfig& config, const std::string& part, auto error) {
    using E = decltype(error);
    const std::string message = message_of<E>([&] { Upcycling upcycling(config); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  RunConfig config = moe_config("copied");
  config.model.moe.moe_shared_expert_intermediate_size = 8;
  expect(config, "a dense model has nothing that layers.0.moe.shared_experts.", CheckpointError(""));
  config = moe_config("copied");
  config.model.untie_embeddings_and_output_weights = true;
  expect(config, "the dense model has untie_embeddings_and_output_weights = false, this run true", ConfigError(""));
  config = moe_config("copied");
  config.model.moe.moe_ffn_hidden_size = 12;
  expect(config, "the dense model's MLPs have 24 hidden units, experts have 12; set moe_ffn_hidden_size to that",
         ConfigError(""));
  config.train.upcycle_method = "granular";
  config.model.moe.moe_router_topk = 1;
  config.model.moe.moe_router_pre_softmax = true;
  expect(config, "moe_router_topk = 1 is no multiple of the 2 slices", ConfigError(""));
  config = moe_config("copied");
  config.model.moe.moe_parallel_mlp = true;
  expect(config, "makes experts from dense MLPs, and moe_parallel_mlp = true keeps an MLP beside them",
         ConfigError(""));
  config = moe_config("copied");
  config.model.use_double_wide_mlp = true;
  expect(config, "makes experts of one width, and use_double_wide_mlp = true gives dense MLPs two", ConfigError(""));
  config = moe_config("copied");
  config.train.upcycle = "absent";
  expect(config, "upcycle = absent: there is neither a checkpoint, nor a run in ", CheckpointError(""));

  // A tensor without a place in the MoE model.
  fs::remove_all(folder_ / "dense");
  save_dense(dense_config(), "layers.1.mlp.scale");
  expect(moe_config("copied"), "holds \"layers.1.mlp.scale\", which the MoE model has no place for: it would be lost",
         CheckpointError(""));

  // A model with experts cannot be upcycled.
  fs::remove_all(folder_ / "dense");
  RunConfig experts = dense_config();
  experts.model.moe.num_experts = 2;
  save_dense(laid_out(experts, {}));
  expect(moe_config("copied"), "has experts already (num_experts = 2)", ConfigError(""));
}

}  // namespace
}  // namespace witan
