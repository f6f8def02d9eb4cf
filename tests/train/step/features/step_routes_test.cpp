// Routes that engines record in one layout and replay in another.
#include "witan/train/step/features/step_routes.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/generate/generation_batch.h"
#include "witan/train/loop/run_routes.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;
using testing::laid_out;
using testing::LaidOut;

constexpr int64_t kSteps = 2;

RunConfig recipe() {
  RunConfig config;
  config.model.dtype = "float64";
  config.model.num_layers = 4;
  config.model.hidden_size = 16;
  config.model.vocab_size = 64;
  config.model.mlp.ffn_hidden_size = 8;
  config.model.moe.moe_layer_freq = "[0,1,1,1]";
  config.data.seq_length = 16;
  config.train.train_iters = 30;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 8;
  config.train.sample_tokens = 0;
  config.optimizer.lr_warmup_iters = 3;
  return laid_out(config, {});
}

RunConfig recording(RunConfig config, const fs::path& folder) {
  config.train.record_routes = folder;
  return config;
}
RunConfig replaying(RunConfig config, const fs::path& folder) {
  config.train.replay_routes = folder;
  return config;
}

struct Taken {
  std::vector<double> losses, norms, balances;
};

// The last five positions of every row are padding.
void pad(std::vector<Batch>& batches) {
  for (Batch& batch : batches) {
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      if (i % static_cast<size_t>(batch.sequence_length) + 5 < static_cast<size_t>(batch.sequence_length)) continue;
      batch.sequence_ids[i] = kPadding;
      batch.loss_mask[i] = 0;
    }
    batch.loss_tokens = std::count(batch.loss_mask.begin(), batch.loss_mask.end(), 1.0f);
  }
}

// The steps of a run, made like the trainer's.
Taken take_steps(const RunConfig& config) {
  Taken taken;
  testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
    const RunRoutes routes(config, groups);
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<Batch> batches = testing::own_batches(config, groups.layout(), rank, step);
      if (config.data.packs()) pad(batches);
      if (routes.replays()) engine.feature<StepRoutes>()->replay(routes.read(step + 1, batches));
      const StepResult out = engine.step(batches, step + 1, step);
      if (routes.records()) routes.write(step + 1, batches, engine.feature<StepRoutes>()->read());
      if (rank != 0) continue;
      taken.losses.push_back(out.loss);
      taken.norms.push_back(out.gradient_norm);
      taken.balances.push_back(out.router.model("load_balancing_loss").value_or(0));
    }
  });
  return taken;
}

void expect_equal(const Taken& a, const Taken& b, double tolerance, const std::string& what) {
  SCOPED_TRACE(what);
  for (size_t step = 0; step < static_cast<size_t>(kSteps); ++step) {
    EXPECT_NEAR(a.losses[step], b.losses[step], tolerance * a.losses[step]) << "loss of step " << step;
    EXPECT_NEAR(a.norms[step], b.norms[step], tolerance * a.norms[step]) << "gradient norm of step " << step;
    EXPECT_NEAR(a.balances[step], b.balances[step], tolerance * a.balances[step]) << "balance of step " << step;
  }
}

// Each token's expert numbers increased by one, which no router would choose.
void shift_experts(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".routes") continue;
    RouteFile file = read_routes(entry.path());
    for (RouteFile::Layer& layer : file.layers)
      for (int32_t& id : layer.ids) id = static_cast<int32_t>((id + 1) % file.experts);
    write_file_atomically(entry.path(), encode_routes(file));
  }
}

TEST(StepRoutes, ReplayingARunsOwnRoutesGivesItsBits) {
  for (const char* granularity : {"none", "full"})
    for (const double capacity : {0.0, 1.0}) {
      const TempFolder folder;
      RunConfig config = recipe();
      config.model.recompute_granularity = granularity;
      config.model.moe.moe_expert_capacity_factor = capacity;
      const Taken free = take_steps(config);
      const Taken recorded = take_steps(recording(config, folder / "routes"));
      const Taken replayed = take_steps(replaying(config, folder / "routes"));
      EXPECT_EQ(recorded.losses, free.losses);
      EXPECT_EQ(recorded.norms, free.norms);
      EXPECT_EQ(replayed.losses, free.losses);
      EXPECT_EQ(replayed.norms, free.norms);
    }
}

// Padding has no routes: files contain experts for it, which a replay ignores.
TEST(StepRoutes, ReplayingPaddedRowsGivesTheirBits) {
  const TempFolder folder;
  RunConfig config = recipe();
  config.data.data_packing = "best_fit";
  const Taken free = take_steps(config);
  const Taken recorded = take_steps(recording(config, folder / "routes"));
  const Taken replayed = take_steps(replaying(config, folder / "routes"));
  EXPECT_EQ(recorded.losses, free.losses);
  EXPECT_EQ(replayed.losses, free.losses);
  EXPECT_EQ(replayed.norms, free.norms);
  EXPECT_EQ(replayed.balances, free.balances);
  shift_experts(folder / "routes");
  const Taken shifted = take_steps(replaying(config, folder / "routes"));
  const Taken elsewhere = take_steps(replaying(laid_out(config, {"replicate=2,context=2"}), folder / "routes"));
  expect_equal(shifted, elsewhere, 1e-9, "shifted");
  EXPECT_NE(shifted.losses, free.losses);
}

TEST(StepRoutes, RecordedInOneLayoutAreReplayedInAnother) {
  const std::vector<LaidOut> layouts = {{""},
                                        {"replicate=4,expert=2"},
                                        {"tensor=2,replicate=2,expert=2,expert_tensor=1"},
                                        {"pipeline=2", "auto", 2},
                                        {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", "optim_grads_params"}};
  for (const char* scores : {"softmax", "sigmoid"}) {
    RunConfig config = recipe();
    config.train.micro_batch_size = 1;
    config.model.moe.moe_router_score_function = scores;
    config.model.moe.moe_router_enable_expert_bias = scores == std::string("sigmoid");
    const TempFolder folder;
    const Taken free = take_steps(config);
    const size_t some = scores == std::string("softmax") ? layouts.size() : 2;
    for (size_t i = 0; i < some; ++i) {
      SCOPED_TRACE("recorded under " + testing::described(layouts[i]));
      const fs::path routes = folder / std::to_string(i);
      expect_equal(free, take_steps(recording(laid_out(config, layouts[i]), routes)), 1e-9, "while recording");
      const LaidOut& next = layouts[(i + 1) % layouts.size()];
      expect_equal(free, take_steps(replaying(laid_out(config, next), routes)), 1e-9, testing::described(next));
    }
    // Routes that these routers would not choose change the result, equally in all layouts.
    shift_experts(folder / "1");
    const Taken forced = take_steps(replaying(config, folder / "1"));
    EXPECT_GT(std::abs(forced.losses[0] - free.losses[0]), 1e-6 * free.losses[0]);
    for (const LaidOut& layout : layouts)
      expect_equal(forced, take_steps(replaying(laid_out(config, layout), folder / "1")), 1e-9,
                   "forced, " + testing::described(layout));
  }
}

// A micro-batch is recomputed after the forwards of other micro-batches.
TEST(StepRoutes, RecomputationUsesTheRoutesOfItsMicroBatch) {
  const TempFolder folder;
  RunConfig config = recipe();
  config.train.micro_batch_size = 1;
  take_steps(recording(config, folder / "routes"));
  shift_experts(folder / "routes");
  const Taken forced = take_steps(replaying(config, folder / "routes"));
  config.model.recompute_granularity = "full";
  expect_equal(forced, take_steps(replaying(laid_out(config, {"pipeline=2", "auto", 2}), folder / "routes")), 1e-9,
               "recomputed in a pipeline");
}

TEST(StepRoutes, RefusesRoutesOfOtherTokensOrModels) {
  const TempFolder folder;
  const RunConfig config = recipe();
  take_steps(recording(config, folder / "routes"));
  RunConfig other = replaying(config, folder / "routes");
  other.train.micro_batch_size = 4;  // other tokens of the test's endless stream
  EXPECT_NE(message_of<DataError>([&] { take_steps(other); }).find("were recorded of other tokens"), std::string::npos);
  other = replaying(config, folder / "routes");
  other.model.moe.moe_router_topk = 3;
  EXPECT_NE(message_of<ConfigError>([&] { take_steps(other); }).find("moe_router_topk = 2, this run has 3"),
            std::string::npos);
  other = replaying(config, folder / "routes");
  other.model.moe.num_experts = 0;
  EXPECT_NE(message_of<ConfigError>([&] { take_steps(other); }).find("a dense model has no routes"), std::string::npos);
  other = replaying(recording(config, folder / "routes"), folder / "routes");
  EXPECT_NE(message_of<ConfigError>([&] { take_steps(other); }).find("the replayed routes would be overwritten"),
            std::string::npos);
}

// Training replays a sampler's routes for the same tokens, which were chosen token by token with a cache.
TEST(StepRoutes, RoutesOfAGenerationAreReplayedByTraining) {
  const TempFolder folder;
  RunConfig config = recipe();
  config.train.global_batch_size = config.train.micro_batch_size = 1;
  const ResolvedConfig resolved = resolve(config, {});
  const auto with_engine = [](const ResolvedConfig& of, const auto& body) {
    ThreadWorld world(1);
    world.run([&](int rank) {
      ThreadPool pool(1);
      Stream stream({Device::Kind::cpu}, reserve_arena({Device::Kind::cpu}, int64_t{1} << 28), pool);
      const Groups groups =
          make_groups(world, Layout(of->parallel, 1, of->model.moe.num_experts), rank, stream, sums_of(*of));
      Engine engine(stream, groups, of);
      body(stream, groups, engine);
    });
  };
  std::vector<int32_t> text = {5, 9, 60};
  with_engine(resolved, [&](Stream& stream, const Groups&, Engine& engine) {
    RouteLog log(engine.model());
    GenerateOptions options;
    options.max_tokens = config.data.seq_length + 1 - 3;
    const std::vector<int32_t> more = generate(stream, engine.model(), text, options);
    text.insert(text.end(), more.begin(), more.end());
    EXPECT_EQ(log.tokens(), config.data.seq_length);  // the last token was never an input
    log.write(folder / "routes", RouteFile::Kind::generation, 1, 1, {text.begin(), text.end() - 1});
  });

  Batch batch = testing::random_batch(config, 0);
  batch.tokens = {text.begin(), text.end() - 1};
  batch.targets = {text.begin() + 1, text.end()};
  double free = 0, replayed = 0;
  with_engine(resolved, [&](Stream&, const Groups&, Engine& engine) { free = engine.step({batch}, 1, 0).loss; });
  const auto replay = [&] {
    const ResolvedConfig again = resolve(replaying(config, folder / "routes"), {});
    with_engine(again, [&](Stream&, const Groups& groups, Engine& engine) {
      const RunRoutes routes(again, groups);
      engine.feature<StepRoutes>()->replay(routes.read(1, {batch}));
      replayed = engine.step({batch}, 1, 0).loss;
    });
  };
  replay();
  EXPECT_NEAR(replayed, free, 1e-9 * free);  // in float64 both choose the same experts
  shift_experts(folder / "routes");
  replay();
  EXPECT_GT(std::abs(replayed - free), 1e-6 * free);
}

}  // namespace
}  // namespace witan
