// A checkpoint of any layout is loaded under any other, to the bit: weights, float32 masters and the optimizer's state.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "support/temp_folder.h"
#include "train/run_support.h"
#include "witan/checkpoint/background_save.h"
#include "witan/tensor/host.h"
#include "witan/tensor/split.h"

namespace witan {
namespace {

using test::TempFolder;
using testing::small_config;

// Runs body(engine, saver, rank) on the ranks of the config's layout.
void on_engines(const RunConfig& config,
                const std::function<void(Engine& engine, BackgroundSave& saving, int rank)>& body) {
  const auto ranks = static_cast<int>(config.parallel.ranks);
  const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
  const int64_t arena = make_plan(config).arena_bytes();
  ThreadWorld world(ranks);
  world.run([&](int rank) {
    const Groups groups = make_groups(world, layout, rank);
    ThreadPool pool(1);
    Stream stream({Device::Kind::cpu}, Arena::reserve(arena), pool);
    Engine engine(stream, groups, config);
    BackgroundSave saving(world.group(rank, layout.mesh().ranks(rank, layout.world_axes()), "checkpoint"));
    body(engine, saving, rank);
  });
}

// As a checkpoint holds it.
std::vector<std::byte> bytes_of(const StateTensor& tensor) {
  std::vector<std::byte> all;
  const auto append = [&](const std::byte* bytes, int64_t count) { all.insert(all.end(), bytes, bytes + count); };
  if (tensor.remainder.defined())
    for_joined_bytes(tensor.local, tensor.remainder, append);
  else
    for_host_bytes(tensor.local, append);
  return all;
}

// Where one step takes the engines, saved.
void save_after_a_step(const RunConfig& config, const fs::path& folder) {
  on_engines(config, [&](Engine& engine, BackgroundSave& saving, int rank) {
    const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
    engine.step(testing::own_batches(config, layout, rank, 0), 1, 0);
    saving.begin(folder, {1, engine.state(), Json::object(), {}}, 1);
    saving.finish();
  });
}

TEST(Moved, EveryLayoutLoadsWhatEveryOtherSaved) {
  const std::vector<std::pair<int64_t, int64_t>> layouts = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2},
                                                            {4, 4}, {8, 1}, {8, 2}, {8, 4}, {8, 8}};
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const auto& [ranks, expert] : layouts) {
      SCOPED_TRACE(cat(dtype, ", saved by ", ranks, " ranks, experts divided by ", expert));
      const TempFolder folder;
      RunConfig config = small_config();
      config.model.num_layers = 1;
      config.model.dtype = dtype;
      config.parallel = {ranks, expert, 1};
      save_after_a_step(config, folder.path());
      const Checkpoint saved = open_checkpoint(folder / "step-1");

      std::map<std::string, std::vector<std::byte>> whole;  // every global tensor's bytes
      config.parallel = {1, 1, 1};
      on_engines(config, [&](Engine& engine, BackgroundSave& saving, int) {
        load_tensors(saving.world(), saving.stream(), saved, engine.state());
        for (const StateTensor& tensor : engine.state()) whole[tensor.name] = bytes_of(tensor);
      });
      ASSERT_EQ(whole.size(), saved.manifest.tensors.size());
      const bool masters = std::ranges::any_of(whole, [](const auto& one) { return one.first.starts_with("master/"); });
      EXPECT_EQ(masters, config.model.dtype == "bfloat16");

      for (const auto& [readers, divided] : layouts) {
        config.parallel = {readers, divided, 1};
        on_engines(config, [&](Engine& engine, BackgroundSave& saving, int rank) {
          load_tensors(saving.world(), saving.stream(), saved, engine.state());
          for (const StateTensor& tensor : engine.state()) {
            const std::vector<std::byte> found = bytes_of(tensor);
            const std::byte* expected = whole.at(tensor.name).data() + tensor.region.first() * size_of(tensor.dtype());
            ASSERT_TRUE(std::equal(found.begin(), found.end(), expected))
                << tensor.name << " on rank " << rank << " of " << readers << ", experts divided by " << divided;
          }
        });
      }
    }
  }
}

// Distributed optimizers and whole ones load what the others saved.
TEST(Moved, OwnersOfPartsToo) {
  for (const auto& [ranks, expert, instances] : std::vector<std::array<int, 3>>{{1, 1, 1}, {4, 2, 1}, {4, 1, 2}}) {
    const TempFolder folder;
    RunConfig config = testing::sharded_config(ranks, expert, instances);
    config.model.num_layers = 1;
    config.model.dtype = "bfloat16";
    save_after_a_step(config, folder.path());
    const Checkpoint saved = open_checkpoint(folder / "step-1");
    std::map<std::string, std::vector<std::byte>> whole;
    RunConfig one = config;
    one.parallel = {1, 1, 1};
    on_engines(one, [&](Engine& engine, BackgroundSave& saving, int) {
      load_tensors(saving.world(), saving.stream(), saved, engine.state());
      for (const StateTensor& tensor : engine.state()) whole[tensor.name] = bytes_of(tensor);
    });
    for (const auto& [readers, divided, of] : std::vector<std::array<int, 3>>{{2, 1, 1}, {4, 4, 1}, {8, 2, 2}}) {
      RunConfig other = config;
      other.parallel = testing::sharded_config(readers, divided, of).parallel;
      on_engines(other, [&, readers = readers](Engine& engine, BackgroundSave& saving, int rank) {
        load_tensors(saving.world(), saving.stream(), saved, engine.state());
        for (const StateTensor& tensor : engine.state()) {
          const std::vector<std::byte> found = bytes_of(tensor);
          const std::byte* expected = whole.at(tensor.name).data() + tensor.region.first() * size_of(tensor.dtype());
          ASSERT_TRUE(std::equal(found.begin(), found.end(), expected))
              << tensor.name << " on rank " << rank << " of " << readers;
        }
      });
    }
  }
}

// Ranks that divide matrices, columns, rows, gates and experts inside, and their owners' parts of those.
TEST(Moved, MatricesThatAreCut) {
  struct Of {
    int64_t ranks, tensor, expert, expert_tensor;
    bool owners;
  };
  const std::vector<Of> layouts = {{1, 1, 1, 1, false}, {2, 2, 1, 2, false}, {4, 4, 2, 2, false}, {4, 2, 2, 1, true}};
  RunConfig config = small_config();
  config.model.num_layers = 1;
  config.model.vocab_size = 60;
  config.model.attention.num_query_groups = 2;  // fewer than ranks that divide them
  config.model.dtype = "bfloat16";
  const auto laid_out = [&](const Of& of) {
    RunConfig run = config;
    run.parallel.ranks = of.ranks;
    run.parallel.tensor_model_parallel_size = of.tensor;
    run.parallel.sequence_parallel = true;
    run.parallel.expert_model_parallel_size = of.expert;
    run.parallel.expert_tensor_parallel_size = of.expert_tensor;
    run.parallel.use_distributed_optimizer = of.owners;
    return run;
  };
  for (const Of& writers : layouts) {
    const TempFolder folder;
    save_after_a_step(laid_out(writers), folder.path());
    const Checkpoint saved = open_checkpoint(folder / "step-1");
    std::map<std::string, std::vector<std::byte>> whole;
    on_engines(laid_out(layouts[0]), [&](Engine& engine, BackgroundSave& saving, int) {
      load_tensors(saving.world(), saving.stream(), saved, engine.state());
      for (const StateTensor& tensor : engine.state()) whole[tensor.name] = bytes_of(tensor);
    });
    ASSERT_EQ(whole.size(), saved.manifest.tensors.size());
    for (const Of& readers : layouts)
      on_engines(laid_out(readers), [&](Engine& engine, BackgroundSave& saving, int rank) {
        load_tensors(saving.world(), saving.stream(), saved, engine.state());
        for (const StateTensor& tensor : engine.state()) {
          const std::vector<std::byte> found = bytes_of(tensor), &all = whole.at(tensor.name);
          const auto size = static_cast<int64_t>(found.size()) / tensor.region.elements();
          for (int64_t i = 0; i < tensor.region.elements(); ++i)
            ASSERT_TRUE(std::equal(found.data() + i * size, found.data() + (i + 1) * size,
                                   all.data() + tensor.region.global(i) * size))
                << tensor.name << ", element " << i << " on rank " << rank << " of " << readers.ranks << ", saved by "
                << writers.ranks;
        }
      });
  }
}

// Stages of a pipeline, and ranks that divide sequences, load what others saved, and one rank what they did; the other
// way round too.
TEST(Moved, StagesOfAPipelineAndRanksOfASequenceToo) {
  const auto staged = [](int64_t stages, int64_t chunks, int64_t ranks, bool divided, int64_t context = 1) {
    ParallelConfig parallel{ranks, 1, 1};
    parallel.context_parallel_size = context;
    parallel.pipeline_model_parallel_size = stages;
    parallel.num_virtual_stages_per_pipeline_rank = chunks;
    parallel.use_distributed_optimizer = divided;
    return parallel;
  };
  const std::vector<ParallelConfig> layouts = {staged(1, 0, 1, false),   staged(2, 0, 2, false),
                                               staged(4, 0, 4, false),   staged(2, 2, 4, true),
                                               staged(1, 0, 4, true, 2), staged(2, 0, 4, false, 2)};
  for (const ParallelConfig& from : layouts) {
    const TempFolder folder;
    RunConfig config = small_config();
    config.model.num_layers = 4;
    config.model.dtype = "bfloat16";
    config.parallel = from;
    save_after_a_step(config, folder.path());
    const Checkpoint saved = open_checkpoint(folder / "step-1");
    std::map<std::string, std::vector<std::byte>> whole;
    config.parallel = layouts.front();
    on_engines(config, [&](Engine& engine, BackgroundSave& saving, int) {
      load_tensors(saving.world(), saving.stream(), saved, engine.state());
      for (const StateTensor& tensor : engine.state()) whole[tensor.name] = bytes_of(tensor);
    });
    ASSERT_EQ(whole.size(), saved.manifest.tensors.size());
    for (const ParallelConfig& to : layouts) {
      config.parallel = to;
      on_engines(config, [&](Engine& engine, BackgroundSave& saving, int rank) {
        load_tensors(saving.world(), saving.stream(), saved, engine.state());
        for (const StateTensor& tensor : engine.state()) {
          const std::vector<std::byte> found = bytes_of(tensor);
          const std::byte* expected = whole.at(tensor.name).data() + tensor.region.first() * size_of(tensor.dtype());
          ASSERT_TRUE(std::equal(found.begin(), found.end(), expected))
              << tensor.name << " on rank " << rank << ", " << from.pipeline_model_parallel_size << " stages to "
              << to.pipeline_model_parallel_size << ", context " << from.context_parallel_size << " to "
              << to.context_parallel_size;
        }
      });
    }
  }
}

// Values that ranks divide, an optimizer that they divide, and one rank: each loads what the others saved.
TEST(Moved, DividedValuesToo) {
  const auto config_of = [](int ranks, int expert, const char* strategy, int stages = 1) {
    RunConfig config = testing::sharded_config(ranks, expert, 1);
    config.parallel.use_distributed_optimizer = false;
    config.parallel.data_parallel_sharding_strategy = strategy;
    config.parallel.pipeline_model_parallel_size = stages;
    config.model.num_layers = 2;
    config.model.dtype = "bfloat16";
    return config;
  };
  const std::vector<RunConfig> configs = {config_of(1, 1, "no_shard"), config_of(2, 1, "optim"),
                                          config_of(4, 2, "optim_grads_params"),
                                          config_of(4, 1, "optim_grads_params", 2)};
  for (const RunConfig& config : configs) {
    const TempFolder folder;
    save_after_a_step(config, folder.path());
    const Checkpoint saved = open_checkpoint(folder / "step-1");
    std::map<std::string, std::vector<std::byte>> whole;
    on_engines(configs[0], [&](Engine& engine, BackgroundSave& saving, int) {
      load_tensors(saving.world(), saving.stream(), saved, engine.state());
      for (const StateTensor& tensor : engine.state()) whole[tensor.name] = bytes_of(tensor);
    });
    ASSERT_EQ(whole.size(), saved.manifest.tensors.size());
    for (const RunConfig& other : configs)
      on_engines(other, [&](Engine& engine, BackgroundSave& saving, int rank) {
        load_tensors(saving.world(), saving.stream(), saved, engine.state());
        for (const StateTensor& tensor : engine.state()) {
          const std::vector<std::byte> found = bytes_of(tensor);
          const std::byte* expected = whole.at(tensor.name).data() + tensor.region.first() * size_of(tensor.dtype());
          ASSERT_TRUE(std::equal(found.begin(), found.end(), expected))
              << tensor.name << " on rank " << rank << ", " << config.parallel.data_parallel_sharding_strategy
              << " loaded as " << other.parallel.data_parallel_sharding_strategy;
        }
      });
  }
}

}  // namespace
}  // namespace witan
