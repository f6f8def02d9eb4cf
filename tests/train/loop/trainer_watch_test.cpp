// Runs detect slow ranks and ranks whose values differ from their replicas.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "support/message_of.h"
#include "train/loop/trainer_support.h"
#include "witan/checkpoint/store.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/tensor/host.h"
#include "witan/train/step/engine.h"

namespace witan {
namespace {

using test::message_of;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainerWatch : public testing::Trainer {
 protected:
  RunConfig config(const std::string& name, const std::string& mesh) {
    RunConfig config = Trainer::config(name);
    config.train.sample_tokens = 0;
    config.parallel = {1, 1, 1};
    config.parallel.mesh = mesh;
    expand_mesh(config.parallel, {});
    return config;
  }
};

// Every rank's backward takes 40 ms longer, and rank 2's 120 ms. The others, which wait for it, are not reported.
TEST_F(TrainerWatch, AStragglerIsNamed) {
  RunConfig slow = config("slow", "replicate=4");
  slow.train.train_iters = 22;
  slow.optimizer.lr_decay_iters = 22;
  slow.train.straggler_threshold = 1.3;
  aids_.before_step = [](int rank, int64_t step, std::vector<Batch>&, Engine& engine) {
    if (step != 1) return;
    Parameter& parameter = *engine.model().parameters().back();
    parameter.gradient_ready = [rank, of_engine = parameter.gradient_ready](Parameter& ready) {
      std::this_thread::sleep_for(std::chrono::milliseconds(rank == 2 ? 120 : 40));
      of_engine(ready);
    };
  };
  run(slow);
  const auto events = read_metrics(folder_ / "slow" / "metrics.jsonl").anomalies;
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].what, "straggler");
  EXPECT_LE(events[0].step, 20);
  EXPECT_THAT(events[0].text, HasSubstr("rank 2 (host "));
  EXPECT_THAT(events[0].text, HasSubstr(" times the median of 4 ranks over the last 20 steps: "));
  EXPECT_THAT(read_file(folder_ / "slow" / "train.log"), HasSubstr("straggler: rank 2 (host "));
  EXPECT_THAT(read_file(folder_ / "slow" / "train.log"), Not(HasSubstr("rank 1 (host ")));
}

// A flipped bit in one rank's state is found at the next interval, or before a save.
class Corruption : public TrainerWatch {
 protected:
  std::string complaint_of(const std::string& name, const std::string& mesh, int64_t interval, int64_t at,
                           StateTensor::Kind kind) {
    RunConfig ill = config(name, mesh);
    ill.train.check_states_interval = interval;
    aids_.before_step = [=](int rank, int64_t step, std::vector<Batch>&, Engine& engine) {
      const std::vector<StateTensor> state = engine.state();
      if (rank != 2 || step != at) return;
      for (const StateTensor& tensor : state) {
        if (tensor.kind != kind || tensor.local.elements() < 10) continue;
        std::byte byte{};
        copy_to_host(&byte, tensor.local, 9, 1);
        byte ^= std::byte{4};
        copy_from_host(tensor.local, 9, &byte, 1);
        return;
      }
    };
    return message_of<CommError>([&] { run(ill); });
  }
};

TEST_F(Corruption, OfAValueIsFoundAtTheInterval) {
  const std::string said = complaint_of("value", "replicate=4", 3, 5, StateTensor::Kind::value);
  EXPECT_THAT(said, HasSubstr("check_states after the update: the value of "));
  EXPECT_THAT(said, HasSubstr("must be the same on all 4 ranks of axis replicate, but differs on rank(s) 2"));
  EXPECT_TRUE(fs::exists(checkpoint("value", 4)));
}

TEST_F(Corruption, OfAMomentIsFoundBeforeASave) {
  const std::string said = complaint_of("moment", "replicate=4", 1000, 6, StateTensor::Kind::optimizer);
  EXPECT_THAT(said, HasSubstr("differs on rank(s) 2"));
  EXPECT_TRUE(fs::exists(checkpoint("moment", 4)));
  EXPECT_FALSE(fs::exists(checkpoint("moment", 8)));
}

TEST_F(Corruption, IsFoundAmongReplicasOfShards) {
  const std::string said = complaint_of("shards", "replicate=2,shard=2", 2, 5, StateTensor::Kind::optimizer);
  EXPECT_THAT(said, HasSubstr("on all 2 ranks of axis replicate, but differs on rank(s) "));
  EXPECT_THAT(said, AnyOf(HasSubstr("(s) 2"), HasSubstr("(s) 3"))) << "rank 3 gets its update from rank 2";
}

TEST_F(Corruption, CheckingDoesNotChangeTheRun) {
  RunConfig checked = config("checked", "replicate=2,shard=2"), plain = config("plain", "replicate=2,shard=2");
  checked.train.check_states_interval = 2;
  run(checked);
  run(plain);
  EXPECT_EQ(weights("checked", 12), weights("plain", 12));
  expect_same_steps("checked", "plain");
}

}  // namespace
}  // namespace witan
