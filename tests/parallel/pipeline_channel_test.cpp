// Compares pipeline stages of a few linear layers on threads and processes with the same layers on one rank.
#include "witan/parallel/pipeline_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/pipeline_support.h"
#include "support/message_of.h"
#include "support/processes.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

using test::message_of;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::Passes;
using testing::ThreadRank;

const Shape kShape{2, 3, 4};  // [B, S, D]

// Layer k maps x to (k + 2) x + k, so that a skipped, repeated or misplaced chunk shows.
double forward_of(int layer, double x) {
  return (layer + 2) * x + layer;
}
double backward_of(int layer, double dy) {
  return (layer + 2) * dy;
}

// A stage whose chunks are one layer each.
class Layers : public StageModel {
 public:
  Layers(Stream& stream, const Pipeline& pipeline, int stage) : stream_(stream), pipeline_(pipeline), stage_(stage) {}

  Tensor forward(int64_t micro_batch, int chunk, Tensor x) override {
    before(Work{Work::Pass::forward, micro_batch, chunk});
    const int layer = layer_of(chunk);
    EXPECT_EQ(x.defined(), layer > 0);
    const double in = x.defined() ? x.data<double>()[0] : static_cast<double>(micro_batch);
    if (layer == 0) x = stream_.empty(kShape, DType::f64);
    Tensor y = filled(forward_of(layer, in));
    activations_[{micro_batch, chunk}] = x;
    if (!is_last(layer)) return y;
    losses[micro_batch] = y.data<double>()[0];
    return {};
  }

  Tensor backward(int64_t micro_batch, int chunk, Tensor dy) override {
    before(Work{Work::Pass::backward, micro_batch, chunk});
    const int layer = layer_of(chunk);
    EXPECT_EQ(dy.defined(), !is_last(layer));
    EXPECT_EQ(activations_.erase({micro_batch, chunk}), 1U);
    const double dx = backward_of(layer, dy.defined() ? dy.data<double>()[0] : static_cast<double>(micro_batch + 1));
    if (layer > 0) return filled(dx);
    gradients[micro_batch] = dx;
    return {};
  }

  std::function<void(const Work&)> before = [](const Work&) {};
  std::map<int64_t, double> losses, gradients;  // by micro-batch: losses of the last layer, gradients of the first

 private:
  int layer_of(int chunk) const { return chunk * pipeline_.stages + stage_; }
  bool is_last(int layer) const { return layer == pipeline_.stages * pipeline_.chunks - 1; }
  Tensor filled(double value) {
    Tensor out = stream_.empty(kShape, DType::f64);
    std::ranges::fill(out.span<double>(), value);
    return out;
  }

  Stream& stream_;
  const Pipeline pipeline_;
  const int stage_;
  std::map<std::pair<int64_t, int>, Tensor> activations_;
};

void expect_as_on_one_rank(const Pipeline& pipeline, int stage, const Layers& layers) {
  const int count = pipeline.stages * pipeline.chunks;
  for (int64_t micro_batch = 0; micro_batch < pipeline.micro_batches; ++micro_batch) {
    double y = static_cast<double>(micro_batch), dy = static_cast<double>(micro_batch + 1);
    for (int layer = 0; layer < count; ++layer) y = forward_of(layer, y);
    for (int layer = count; layer-- > 0;) dy = backward_of(layer, dy);
    if (stage == pipeline.stages - 1) {
      EXPECT_EQ(layers.losses.at(micro_batch), y);
    }
    if (stage == 0 && pipeline.passes == Passes::both) {
      EXPECT_EQ(layers.gradients.at(micro_batch), dy);
    }
  }
}

// Sleeps up to this many microseconds before every pass, each stage with its own random numbers.
std::function<void(const Work&)> delays(int stage, int most) {
  return [random = std::mt19937(static_cast<unsigned>(stage)), most](const Work&) mutable {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(most)));
  };
}

TEST(PipelineChannel, MatchesOneRankAtAnySpeed) {
  for (int stages = 1; stages <= 6; ++stages)
    for (int chunks = 1; chunks <= (stages == 1 ? 1 : 2); ++chunks)
      for (const int64_t micro_batches : {1, 7}) {
        const Pipeline pipeline{stages, chunks, micro_batches};
        SCOPED_TRACE(testing::text_of(pipeline));
        on_ranks(stages, [&](ThreadRank& rank) {
          const auto group = rank.everyone("pipeline");
          PipelineChannel channel(*group, pipeline, kShape, DType::f64);
          for (int step = 0; step < 2; ++step) {
            Layers layers(rank.stream, pipeline, rank.rank);
            layers.before = delays(rank.rank, 300);
            channel.run(rank.stream, layers);
            expect_as_on_one_rank(pipeline, rank.rank, layers);
          }
          EXPECT_EQ(rank.stream.arena().live(), 0) << "a tensor is left behind";
        });
      }
}

TEST(PipelineChannel, RunsForwardOnly) {
  const Pipeline pipeline{3, 2, 4, Passes::forward};
  on_ranks(3, [&](ThreadRank& rank) {
    const auto group = rank.everyone("pipeline");
    Layers layers(rank.stream, pipeline, rank.rank);
    PipelineChannel(*group, pipeline, kShape, DType::f64).run(rank.stream, layers);
    expect_as_on_one_rank(pipeline, rank.rank, layers);
  });
}

// A model that only forwards tensors, as in planning.
class Tubes : public StageModel {
 public:
  Tubes(Stream& stream, const Pipeline& pipeline, int stage) : stream_(stream), pipeline_(pipeline), stage_(stage) {}
  Tensor forward(int64_t micro_batch, int chunk, Tensor) override {
    return output(Work{Work::Pass::forward, micro_batch, chunk});
  }
  Tensor backward(int64_t micro_batch, int chunk, Tensor) override {
    return output(Work{Work::Pass::backward, micro_batch, chunk});
  }

 private:
  Tensor output(const Work& work) {
    return target_of(pipeline_, {stage_, work}) ? stream_.empty(kShape, DType::bf16) : Tensor();
  }
  Stream& stream_;
  const Pipeline pipeline_;
  const int stage_;
};

TEST(PipelineChannel, PlansMatchBytesAndMemoryOfARun) {
  const Pipeline pipeline{4, 2, 6};
  const double bytes = static_cast<double>(kShape.elements()) * 2;
  on_ranks(4, [&](ThreadRank& rank) {
    const auto group = rank.everyone("pipeline");
    Tubes tubes(rank.stream, pipeline, rank.rank);
    PipelineChannel(*group, pipeline, kShape, DType::bf16).run(rank.stream, tubes);

    MetaGroup nobody(4, rank.rank, "pipeline");
    Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
    Tubes planned(meta, pipeline, rank.rank);
    PipelineChannel(nobody, pipeline, kShape, DType::bf16).run(meta, planned);

    // The first chunk's input, the last one's output and their gradients are not sent.
    const int sends = rank.rank == 0 || rank.rank == 3 ? 3 : 4;
    EXPECT_EQ(group->sent().at("send"), 6 * sends * bytes);
    EXPECT_EQ(nobody.sent(), group->sent());
    EXPECT_EQ(meta.arena().high_water(), rank.stream.arena().high_water());
  });
}

TEST(PipelineChannel, AllStagesEndWhenOneFails) {
  const Pipeline pipeline{5, 2, 10};
  for (const Work& where : {Work{Work::Pass::forward, 0, 0}, Work{Work::Pass::forward, 7, 1},
                            Work{Work::Pass::backward, 3, 1}, Work{Work::Pass::backward, 9, 0}}) {
    SCOPED_TRACE(testing::text_of(pipeline, where));
    std::vector<std::string> told(5);
    ThreadWorld world(5, {.deadline_seconds = 20});
    const auto start = std::chrono::steady_clock::now();
    const std::string message = message_of<DivergedError>([&] {
      on_ranks(world, [&](ThreadRank& rank) {
        const auto group = rank.everyone("pipeline");
        Layers layers(rank.stream, pipeline, rank.rank);
        layers.before = [&](const Work& work) {
          if (rank.rank == 2 && work == where) throw DivergedError("the loss is not finite");
        };
        try {
          PipelineChannel(*group, pipeline, kShape, DType::f64).run(rank.stream, layers);
        } catch (const std::exception& error) {
          told[static_cast<size_t>(rank.rank)] = error.what();
          throw;
        }
      });
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    EXPECT_EQ(message, "rank 2: the loss is not finite");
    // A stage that had finished its work does not wait for anything.
    for (const auto& words : told)
      EXPECT_THAT(words,
                  ::testing::AnyOf("", "the loss is not finite", "axis pipeline: stopped, as another rank failed"));
    if (where.micro_batch == 0) {
      EXPECT_EQ(told[0], "axis pipeline: stopped, as another rank failed");
      EXPECT_EQ(told[4], told[0]);
    }
  }
}

TEST(PipelineChannel, ErrorsNameAStageThatLeavesOrIsLate) {
  const Pipeline pipeline{3, 1, 4};
  const auto error_of = [&](double deadline, bool leaves) {
    ThreadWorld world(3, {.deadline_seconds = deadline});
    return message_of<CommError>([&] {
      on_ranks(world, [&](ThreadRank& rank) {
        const auto group = rank.everyone("pipeline");
        Layers layers(rank.stream, pipeline, rank.rank);
        if (rank.rank == 1) {
          if (leaves) return;
          layers.before = [&](const Work& work) {
            if (work.micro_batch == 2) testing::until_failed(*group);
          };
        }
        PipelineChannel(*group, pipeline, kShape, DType::f64).run(rank.stream, layers);
      });
    });
  };
  EXPECT_THAT(error_of(20, true), HasSubstr("rank 1, which has returned"));
  EXPECT_THAT(error_of(0.2, false), HasSubstr("axis pipeline: rank 1 did not answer"));
}

TEST(PipelineChannel, RefusesMismatchedOutputsBeforeSending) {
  const Pipeline pipeline{.stages = 2, .micro_batches = 2};
  const auto error_of = [&](const Shape& sent) {
    return message_of<ShapeError>([&] {
      on_ranks(2, [&](ThreadRank& rank) {
        const auto group = rank.everyone("pipeline");
        Layers layers(rank.stream, pipeline, rank.rank);
        PipelineChannel(*group, pipeline, sent, DType::f64).run(rank.stream, layers);
      });
    });
  };
  EXPECT_EQ(error_of({2, 4}),
            "rank 0: pipeline: forward of micro-batch 0 through chunk 0 of stage 0 must return float64 [2, 4], got "
            "float64 [2, 3, 4]");

  class Silent : public StageModel {
    Tensor forward(int64_t, int, Tensor) override { return {}; }
    Tensor backward(int64_t, int, Tensor) override { return {}; }
  };
  EXPECT_EQ(message_of<ShapeError>([&] {
              on_ranks(2, [&](ThreadRank& rank) {
                const auto group = rank.everyone("pipeline");
                Silent silent;
                PipelineChannel(*group, pipeline, kShape, DType::f64).run(rank.stream, silent);
              });
            }),
            "rank 0: pipeline: forward of micro-batch 0 through chunk 0 of stage 0 must return float64 [2, 3, 4], got "
            "nothing");
  MetaGroup three(3, 0, "pipeline");
  EXPECT_EQ(message_of<ConfigError>([&] { PipelineChannel(three, pipeline, kShape, DType::f64); }),
            "pipeline: 2 stages on axis pipeline of 3 ranks; the nearest that works is 3");
}

TEST(PipelineChannel, RunsOnProcesses) {
  for (const int chunks : {1, 2}) {
    const Pipeline pipeline{3, chunks, 7};
    const auto ended = testing::on_processes(3, [&](testing::ProcessRank& rank) -> std::string {
      const auto group = rank.everyone("pipeline");
      Layers layers(rank.stream, pipeline, rank.rank);
      layers.before = delays(rank.rank, 2000);
      PipelineChannel(*group, pipeline, kShape, DType::f64).run(rank.stream, layers);
      expect_as_on_one_rank(pipeline, rank.rank, layers);
      return "done";
    });
    for (const auto& process : ended)
      EXPECT_EQ(std::pair(process.code, process.said), std::pair(0, std::string("done")));
  }
}

TEST(PipelineChannel, ProcessesEndWhenAStageDies) {
  const Pipeline pipeline{3, 2, 6};
  const auto ended = testing::on_processes(3, [&](testing::ProcessRank& rank) -> std::string {
    const auto group = rank.everyone("pipeline");
    Layers layers(rank.stream, pipeline, rank.rank);
    layers.before = [&](const Work& work) {
      if (rank.rank == 1 && work == Work{Work::Pass::backward, 2, 1}) ::_exit(41);
    };
    PipelineChannel(*group, pipeline, kShape, DType::f64).run(rank.stream, layers);
    return "done";
  });
  EXPECT_EQ(ended[1].code, 41);
  for (const int other : {0, 2}) {
    const auto& process = ended[static_cast<size_t>(other)];
    EXPECT_EQ(process.code, static_cast<int>(ExitCode::rank_lost)) << process.said;
    EXPECT_THAT(process.said, HasSubstr("rank 1"));
    EXPECT_LT(process.seconds, 10);
  }
}

TEST(PipelineChannel, RefusesOutputsOfAnotherDtype) {
  const Pipeline pipeline{.stages = 2, .micro_batches = 2};
  EXPECT_EQ(message_of<ShapeError>([&] {
              on_ranks(2, [&](ThreadRank& rank) {
                const auto group = rank.everyone("pipeline");
                Layers layers(rank.stream, pipeline, rank.rank);
                PipelineChannel(*group, pipeline, kShape, DType::f32).run(rank.stream, layers);
              });
            }),
            "rank 0: pipeline: forward of micro-batch 0 through chunk 0 of stage 0 must return float32 [2, 3, 4], got "
            "float64 [2, 3, 4]");
}

// A hanging evaluation must be reported as such.
TEST(PipelineChannel, EvaluationPassesAreReportedAsSuch) {
  class Watched : public StageModel {
   public:
    explicit Watched(Stream& stream) : stream_(stream) {}
    Tensor forward(int64_t micro_batch, int, Tensor) override {
      EXPECT_EQ(stream_.trace_context().micro_batch, micro_batch);
      phases.push_back(stream_.trace_context().phase);
      return {};
    }
    Tensor backward(int64_t, int, Tensor) override {
      phases.push_back(stream_.trace_context().phase);
      return {};
    }
    std::vector<TraceContext::Phase> phases;

   private:
    Stream& stream_;
  };
  using Phase = TraceContext::Phase;
  testing::Rank rank(1);
  MetaGroup alone(1, 0, "pipeline");
  const auto phases_of = [&](Phase outer, Passes passes) {
    Watched watched(rank.stream);
    const TraceContextScope trace_context(rank.stream, outer);
    PipelineChannel(alone, {1, 1, 1, passes}, kShape, DType::f64).run(rank.stream, watched);
    EXPECT_EQ(rank.stream.trace_context().phase, outer);
    return watched.phases;
  };
  EXPECT_EQ(phases_of(Phase::evaluation, Passes::forward), std::vector{Phase::evaluation});
  EXPECT_EQ(phases_of(Phase::none, Passes::both), (std::vector{Phase::forward, Phase::backward}));
}

}  // namespace
}  // namespace witan
