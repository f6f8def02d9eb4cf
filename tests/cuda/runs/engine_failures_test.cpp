// Failures of one rank on GPUs: all ranks end soon, and the cause is named.
#include <gmock/gmock.h>

#include <chrono>

#include "support/message_of.h"
#include "train/step/run_support.h"
#include "witan/tensor/cuda.h"

namespace witan::testing {
namespace {

using ::testing::HasSubstr;

class EngineFailures : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  void SetUp() override {
    if (cuda::devices() < GetParam().first)
      GTEST_SKIP() << "needs " << GetParam().first << " GPUs, there are " << cuda::devices();
    config_ = small_config();
    config_.model.dtype = "bfloat16";
    config_.parallel.ranks = GetParam().first;
    config_.parallel.expert_model_parallel_size = GetParam().second;
    config_.parallel.device = "cuda";
  }

  // Runs endless steps on every rank, each after `disturb(engine, rank, step)`. Returns the error that ends them all.
  template <class E>
  std::string error_of(const std::function<void(Engine& engine, int rank, int64_t step)>& disturb) {
    config_.validate();
    const int ranks = static_cast<int>(config_.parallel.ranks);
    const ::witan::Layout layout(config_.parallel, ranks, config_.model.moe.num_experts);
    const int64_t arena = make_plan(resolve(config_, {})).arena_bytes(), own = config_.micro_batches() / ranks;
    const auto begin = std::chrono::steady_clock::now();
    ThreadWorld world(ranks, {.deadline_seconds = 30});
    const std::string message = test::message_of<E>([&] {
      world.run([&](int rank) {
        ThreadPool pool(1);
        Stream stream(device_of(config_, rank), reserve_arena(device_of(config_, rank), arena), pool);
        const Groups groups = make_groups(world, layout, rank, stream, sums_of(config_));
        Engine engine(stream, groups, resolve(config_, {}));
        for (int64_t step = 0; step < 1000; ++step) {
          disturb(engine, rank, step);
          std::vector<Batch> batches;
          for (int64_t j = rank * own; j < (rank + 1) * own; ++j)
            batches.push_back(random_batch(config_, step * config_.micro_batches() + j));
          engine.step(batches, step % config_.train.train_iters + 1, step);
        }
      });
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20))
        << "a failure must not take this long";
    return message;
  }

  RunConfig config_;
};

// Steps 0 and 1 run eagerly and are recorded; in a replay, the other ranks wait for this one.
TEST_P(EngineFailures, AFailureBetweenReplaysStopsTheOtherRanks) {
  for (const int64_t last : {0, 1, 5}) {
    SCOPED_TRACE(last);
    const auto failing = static_cast<int>(config_.parallel.ranks) - 1;
    EXPECT_EQ(error_of<DataError>([&](Engine&, int rank, int64_t step) {
                if (rank == failing && step > last) throw DataError("the text is gone");
              }),
              cat("rank ", failing, ": the text is gone"));
  }
}

TEST_P(EngineFailures, StateChecksNameTheRankThatDiffers) {
  config_.model.dtype = "float32";  // a bfloat16 value is rewritten from its master
  config_.train.check_states = true;
  const auto last = static_cast<int>(config_.parallel.ranks) - 1;
  const std::string message = error_of<CommError>([&](Engine& engine, int rank, int64_t step) {
    if (rank != last || step != 2) return;
    const Parameter& embedding = *engine.model().parameters()[0];
    const float other = 3;
    engine.stream().write(embedding.value_shard(0, 1), &other);
  });
  EXPECT_THAT(message, HasSubstr("check_states after the update: the value of "));
  EXPECT_THAT(message, HasSubstr(cat("differs on rank(s) ", last)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineFailures,
                         ::testing::Values(std::pair{2, 1}, std::pair{2, 2}, std::pair{4, 1}, std::pair{4, 2}));

}  // namespace
}  // namespace witan::testing
