// If a rank does not reach a collective, the others name the call and the place in the step where they wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/comes_true.h"
#include "support/message_of.h"
#include "support/processes.h"
#include "train/step/run_support.h"
#include "witan/comm/threads/rendezvous.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using testing::on_processes;
using testing::own_batches;
using testing::ProcessRank;
using testing::small_config;

// Hangs in the first call at a place of the step until another rank has given up.
class HangsAt : public CallObserver {
 public:
  HangsAt(const TraceContext& place, std::shared_ptr<Failure> failure) : place_(place), failure_(std::move(failure)) {}
  void begins(const Group&, const Collective& call, double) override {
    const TraceContext& here = *call.trace_context;
    if (here.step != place_.step || here.phase != place_.phase || here.module != place_.module) return;
    test::comes_true([&] { return failure_->raised(); });
    throw AbortedError("it was hanging");
  }

 private:
  const TraceContext place_;
  const std::shared_ptr<Failure> failure_;
};

RunConfig config_of(int64_t ranks, int64_t expert) {
  RunConfig config = small_config();
  config.parallel = {ranks, expert, 1};
  config.train.global_batch_size = 2 * config.train.micro_batch_size * ranks;
  return config;
}

// Three steps in which rank 1 does not reach the call at `place`.
void hang(const RunConfig& config, World& world, int rank, const TraceContext& place) {
  config.validate();
  const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 28), pool);
  const Groups groups = make_groups(world, layout, rank);
  HangsAt hangs(place, world.failure(rank));
  if (rank == 1)
    for (Group* group : groups.all()) group->observe(&hangs);
  Engine engine(stream, groups, resolve(config, {}));
  for (int64_t step = 0; step < 3; ++step) engine.step(own_batches(config, layout, rank, step), step + 1, step);
}

std::string said_by_threads(const RunConfig& config, const TraceContext& place) {
  ThreadWorld world(static_cast<int>(config.parallel.ranks), {.deadline_seconds = 0.5});
  return test::message_of<CommError>([&] { world.run([&](int rank) { hang(config, world, rank, place); }); });
}

std::string said_by_processes(const RunConfig& config, const TraceContext& place) {
  const auto ended = on_processes(static_cast<int>(config.parallel.ranks),
                                  [&](ProcessRank& rank) {
                                    hang(config, rank.world, rank.rank, place);
                                    return "";
                                  },
                                  {20, 0.5});
  for (const auto& one : ended) EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost)) << one.said;
  return ended[0].said;
}

const TraceContext kForward = {.step = 2, .phase = TraceContext::Phase::forward, .module = "layers.0.moe"};
const TraceContext kBackward = {.step = 1, .phase = TraceContext::Phase::backward, .module = "layers.1.moe"};

TEST(HangErrors, NameStepPassAndLayerOnThreads) {
  const RunConfig config = config_of(2, 2);
  const std::string forward = said_by_threads(config, kForward);
  EXPECT_THAT(forward, HasSubstr("axis expert: rank 1 did not reach all_to_all"));
  EXPECT_THAT(forward, HasSubstr("rank 0 waited in step 2, forward of micro-batch 0, layers.0.moe"));
  const std::string backward = said_by_threads(config, kBackward);
  EXPECT_THAT(backward, HasSubstr("axis expert: rank 1 did not reach all_to_all"));
  EXPECT_THAT(backward, HasSubstr("rank 0 waited in step 1, backward of micro-batch 0, layers.1.moe (exchange_rows)"));
}

TEST(HangErrors, NameTheParameterWhoseGradientsAreReduced) {
  const TraceContext reduction = {.step = 2, .phase = TraceContext::Phase::backward, .module = "embedding.weight"};
  const RunConfig config = config_of(2, 1);
  EXPECT_THAT(said_by_threads(config, reduction),
              HasSubstr("rank 0 waited in step 2, backward of micro-batch 1, embedding.weight (gradients)"));
}

TEST(HangErrors, NameStepPassAndLayerOnProcesses) {
  const RunConfig config = config_of(2, 2);
  EXPECT_THAT(said_by_processes(config, kForward), HasSubstr("axis expert: rank 1 did not reach all_to_all"));
  EXPECT_THAT(said_by_processes(config, kBackward),
              HasSubstr("rank 0 waited in step 1, backward of micro-batch 0, layers.1.moe (exchange_rows)"));
}

TEST(HangErrors, NameThePassThatAStageWaitsToSend) {
  RunConfig config = small_config();
  config.parallel.ranks = 2;
  config.parallel.pipeline_model_parallel_size = 2;
  config.train.sample_tokens = 0;
  const TraceContext place = {.step = 2, .phase = TraceContext::Phase::forward};
  EXPECT_THAT(said_by_threads(config, place),
              HasSubstr("axis pipeline: rank 1 did not answer send float32 [2, 12, 32] of rank 0 in step 2, forward of "
                        "micro-batch 0 within"));
}

}  // namespace
}  // namespace witan
