// Values that ranks update for each other are complete for every use after a step.
#include <gtest/gtest.h>

#include "train/step/run_support.h"
#include "witan/generate/generation_batch.h"
#include "witan/tensor/host.h"

namespace witan {
namespace {

using testing::own_batches;
using testing::random_batch;
using testing::sharded_config;

// The values that a rank reads between steps.
struct Seen {
  std::vector<double> figures;
  std::vector<int32_t> text;
  std::vector<std::byte> state;
  double sent_to_look = 0;  // bytes of values in the first evaluation
  bool operator==(const Seen& other) const {
    return figures == other.figures && text == other.text && state == other.state;
  }
};

Seen looked_at(const RunConfig& config) {
  Seen last;
  testing::with_rank_engines(config, [&](Stream& stream, const Groups& groups, Engine& engine, int rank) {
    const Layout& layout = groups.layout();
    Seen seen;
    const auto sent = [&] {
      const auto& all = groups.over(layout.sharding_axes(false)).sent();
      return all.contains("all_gather_uneven") ? all.at("all_gather_uneven") : 0;
    };
    for (int64_t step = 0; step < 5; ++step) {
      seen.figures.push_back(engine.step(own_batches(config, layout, rank, step), step + 1, step).loss);
      if (step == 0) {
        const double before = sent();
        seen.figures.push_back(engine.evaluate({random_batch(config, 1000 + rank)}).loss());
        seen.sent_to_look = sent() - before;
      }
      if (step == 1) seen.figures.push_back(engine.params_norm());
      if (step == 2) {
        GenerateOptions options;
        options.max_tokens = 4;
        seen.text = generate(stream, engine.model(), std::vector<int32_t>{3, 1, 4}, options);
      }
      if (step < 3) continue;
      for (const StateTensor& tensor : engine.state())
        for_host_bytes(tensor.local, [&](const std::byte* bytes, int64_t count) {
          seen.state.insert(seen.state.end(), bytes, bytes + count);
        });
    }
    if (rank == layout.world_size() - 1) last = seen;
  });
  return last;
}

TEST(PublishedValues, AreCompleteForReadersAfterAStep) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const char* strategy : {"optim", "optim_grads"}) {
      RunConfig config = sharded_config(4, 2, 1);
      config.model.dtype = dtype;
      config.parallel.data_parallel_sharding_strategy = strategy;
      const Seen later = looked_at(config);
      config.parallel.overlap_param_gather = false;
      const Seen at_once = looked_at(config);
      EXPECT_TRUE(later == at_once) << dtype << ", " << strategy;
      EXPECT_GT(later.sent_to_look, 0) << "the values came with the step, so the test proves nothing";
      EXPECT_EQ(at_once.sent_to_look, 0);
    }
}

}  // namespace
}  // namespace witan
