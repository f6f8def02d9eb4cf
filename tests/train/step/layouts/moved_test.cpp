// A checkpoint of any layout loads bit for bit in any other: weights, float32 masters and optimizer state.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/long_form.h"
#include "support/temp_folder.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/saving_engines.h"
#include "witan/tensor/host.h"

namespace witan {
namespace {

using test::TempFolder;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::small_config;
using testing::with_saving_engines;

// The tensors as a checkpoint holds them.
std::vector<std::byte> bytes_of(const StateTensor& tensor) {
  std::vector<std::byte> all;
  const auto append = [&](const std::byte* bytes, int64_t count) { all.insert(all.end(), bytes, bytes + count); };
  if (tensor.remainder.defined())
    for_joined_bytes(tensor.local, tensor.remainder, append);
  else
    for_host_bytes(tensor.local, append);
  return all;
}

// Saves the engines' state after one step.
void save_after_a_step(const RunConfig& config, const fs::path& folder) {
  with_saving_engines(config, [&](Engine& engine, BackgroundSave& saving, const Layout& layout, int rank) {
    engine.step(testing::own_batches(config, layout, rank, 0), 1, 0);
    saving.begin(folder, {1, engine.state(), Json::object(), {}}, 1);
    saving.finish();
  });
}

// Every global tensor's bytes by name.
using Bytes = std::map<std::string, std::vector<std::byte>>;

// The tensors as one rank loads them.
Bytes loaded_whole(const RunConfig& config, const Checkpoint& saved) {
  Bytes whole;
  with_saving_engines(laid_out(config, {}), [&](Engine& engine, BackgroundSave& saving, const Layout&, int) {
    load_tensors(saving.world(), saving.stream(), saved, engine.state());
    for (const StateTensor& tensor : engine.state()) whole[tensor.name] = bytes_of(tensor);
  });
  EXPECT_EQ(whole.size(), saved.manifest.tensors.size());
  return whole;
}

// Every rank of the config's layout must load its elements of them.
void expect_loaded(const RunConfig& config, const Checkpoint& saved, const Bytes& whole) {
  with_saving_engines(config, [&](Engine& engine, BackgroundSave& saving, const Layout&, int rank) {
    load_tensors(saving.world(), saving.stream(), saved, engine.state());
    for (const StateTensor& tensor : engine.state()) {
      const std::vector<std::byte> found = bytes_of(tensor), &all = whole.at(tensor.name);
      const auto size = static_cast<int64_t>(found.size()) / std::max<int64_t>(tensor.region.elements(), 1);
      for (int64_t i = 0; i < tensor.region.elements(); ++i)
        ASSERT_TRUE(std::equal(found.data() + i * size, found.data() + (i + 1) * size,
                               all.data() + tensor.region.global(i) * size))
            << tensor.name << ", element " << i << " on rank " << rank;
    }
  });
}

// All of `readers` load checkpoints that each of `writers` saved after a step.
void expect_moves(const RunConfig& config, const std::vector<LaidOut>& writers, const std::vector<LaidOut>& readers) {
  for (const LaidOut& writer : writers) {
    const TempFolder folder;
    save_after_a_step(laid_out(config, writer), folder.path());
    const Checkpoint saved = open_checkpoint(folder / "step-1");
    const Bytes whole = loaded_whole(config, saved);
    const bool masters = std::ranges::any_of(whole, [](const auto& one) { return one.first.starts_with("master/"); });
    EXPECT_EQ(masters, config.model.dtype == "bfloat16");
    for (const LaidOut& reader : readers) {
      SCOPED_TRACE(cat("saved on ", described(writer), ", loaded on ", described(reader)));
      expect_loaded(laid_out(config, reader), saved, whole);
    }
  }
}

RunConfig of_one_layer(RunConfig config, const char* dtype = "bfloat16") {
  config.model.num_layers = 1;
  config.model.dtype = dtype;
  return config;
}

TEST(Moved, EveryLayoutLoadsCheckpointsOfEveryOther) {
  const std::vector<LaidOut> layouts = {{},
                                        {"replicate=2"},
                                        {"replicate=2,expert=2"},
                                        {"replicate=4"},
                                        {"replicate=4,expert=2"},
                                        {"replicate=4,expert=4"},
                                        {"replicate=8"},
                                        {"replicate=8,expert=2"},
                                        {"replicate=8,expert=4"},
                                        {"replicate=8,expert=8"}};
  for (const char* dtype : {"float32", "bfloat16"}) expect_moves(of_one_layer(small_config(), dtype), layouts, layouts);
}

// Distributed optimizers and unsharded ones load each other's checkpoints.
TEST(Moved, ShardedOptimizers) {
  expect_moves(of_one_layer(testing::sharded_config(1, 1, 1)), {{}, {"shard=4,expert=2"}, {"replicate=2,shard=2"}},
               {{"shard=2"}, {"shard=4,expert=4"}, {"replicate=2,shard=4,expert=2"}});
}

// Tensor-parallel parts of matrices by columns and rows, of gates and of experts, and shards of those parts.
TEST(Moved, TensorParallelMatrices) {
  RunConfig config = of_one_layer(small_config());
  config.model.attention.num_query_groups = 4;
  const std::vector<LaidOut> layouts = {
      {}, {"tensor=2"}, {"tensor=4,expert=2,expert_tensor=2"}, {"shard=2,tensor=2,expert=2,expert_tensor=1"}};
  expect_moves(config, layouts, layouts);
}

// Pipeline stages and context-parallel ranks.
TEST(Moved, PipelineStagesAndContextParallelRanks) {
  RunConfig config = of_one_layer(small_config());
  config.model.num_layers = 4;
  const std::vector<LaidOut> layouts = {{},
                                        {"pipeline=2"},
                                        {"pipeline=4"},
                                        {"shard=2,pipeline=2", "auto", 2},
                                        {"shard=2,context=2"},
                                        {"context=2,pipeline=2"}};
  expect_moves(config, layouts, layouts);
}

// Sharded values (FSDP), alone and with other axes.
TEST(Moved, ShardedValues) {
  RunConfig config = of_one_layer(testing::sharded_config(1, 1, 1));
  config.model.num_layers = 2;
  const std::vector<LaidOut> layouts = {{},
                                        {"shard=2"},
                                        {"shard=4,expert=2", kFsdp},
                                        {"replicate=2,shard=2", kFsdp},
                                        {"shard=2,pipeline=2", kFsdp},
                                        {"shard=2,tensor=2,expert=2,expert_tensor=1", kFsdp}};
  if (testing::long_form()) {
    expect_moves(config, layouts, layouts);
  } else {  // each saves once and loads once
    for (size_t i = 0; i < layouts.size(); ++i) expect_moves(config, {layouts[i]}, {layouts[(i + 1) % layouts.size()]});
  }
}

// Parameter groups with several optimizers, some of which own whole matrices: names of state are independent of the
// layout.
TEST(Moved, ParameterGroups) {
  RunConfig config = of_one_layer(testing::sharded_config(1, 1, 1));
  config.model.num_layers = 2;
  set_field(
      config.fields(), "optimizer_groups",
      R"([{kind = "experts,head", optimizer = "sgd", shard_by = "matrices"}, {kind = "matrices", shard_by = "matrices"},
                {kind = "norms", optimizer = "sgd"}])",
      "test");
  const std::vector<LaidOut> layouts = {{},
                                        {"shard=2"},
                                        {"shard=4,expert=2", kFsdp},
                                        {"shard=2,pipeline=2", kFsdp},
                                        {"shard=2,tensor=2,expert=2,expert_tensor=1", kFsdp}};
  for (size_t i = 0; i < layouts.size(); ++i) expect_moves(config, {layouts[i]}, {layouts[(i + 1) % layouts.size()]});
}

TEST(Moved, StateOfElementwiseOptimizers) {
  RunConfig config = of_one_layer(testing::sharded_config(1, 1, 1));
  set_field(config.fields(), "optimizer_groups",
            R"([{kind = "experts", optimizer = "lion"}, {kind = "norms,embeddings", optimizer = "ademamix"}])", "test");
  config.optimizer.exp_avg_sq_dtype = "bfloat16";
  const std::vector<LaidOut> layouts = {{}, {"shard=2"}, {"shard=4,expert=2", "optim_grads_params"}};
  for (size_t i = 0; i < layouts.size(); ++i) expect_moves(config, {layouts[i]}, {layouts[(i + 1) % layouts.size()]});
}

// Momentum of elements and moments of rows, for matrices that have owners and that tensor-parallel ranks divide.
TEST(Moved, StateOfNorMuon) {
  RunConfig config = of_one_layer(testing::sharded_config(1, 1, 1));
  config.model.num_layers = 2;
  config.optimizer.optimizer = "normuon";
  const std::vector<LaidOut> layouts = {{},
                                        {"shard=4,expert=2", kFsdp},
                                        {"shard=2,pipeline=2", kFsdp},
                                        {"shard=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
                                        {"tensor=2,expert_tensor=2"}};
  for (size_t i = 0; i < layouts.size(); ++i) expect_moves(config, {layouts[i]}, {layouts[(i + 1) % layouts.size()]});
}

// State of whole matrices, which only their owners hold, the same on all tensor-parallel ranks.
TEST(Moved, FactorsOfPreconditioners) {
  RunConfig config = of_one_layer(small_config());
  config.optimizer.optimizer = "shampoo";
  set_field(config.fields(), "optimizer_groups", R"([{kind = "matrices", optimizer = "soap"}])", "test");
  config.optimizer.max_preconditioner_dim = 20;
  config.optimizer.precondition_frequency = 2;
  const std::vector<LaidOut> layouts = {
      {}, {"shard=2"}, {"shard=4,expert=2", "optim_grads_params"}, {"shard=2,tensor=2,expert=2,expert_tensor=1"}};
  for (size_t i = 0; i < layouts.size(); ++i) expect_moves(config, {layouts[i]}, {layouts[(i + 1) % layouts.size()]});
}

}  // namespace
}  // namespace witan
