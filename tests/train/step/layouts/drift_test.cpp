// Compares two distances: between one rank and layouts that need not keep its bits in float32, and between float32 and
// float64. Prints the table of docs/numerics.md:
//     WITAN_LONG_TESTS=1 build/test/tests/test_train --gtest_filter='Drift.*'
#include <gtest/gtest.h>

#include <algorithm>
#include <iomanip>
#include <iostream>

#include "support/long_form.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

constexpr int64_t kAll = 100, kEarly = 20;
const int64_t kSteps = testing::steps_of(5, kAll);

RunConfig recipe(int64_t experts) {
  RunConfig config = testing::small_config();
  config.model.vocab_size = 64;
  config.model.moe.num_experts = experts;
  config.model.attention.num_query_groups = 4;
  config.data.seq_length = 16;
  config.train.train_iters = kAll;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  return laid_out(config, {});
}

// Differences relative to the first run: the largest of the losses, for the first steps and for all; the median of the
// gradient norms; and the largest of the final parameters, relative to the largest value of each.
struct Drift {
  double early = 0, loss = 0, norm = 0, parameters = 0;
};
Drift drift(const Trajectory& one, const Trajectory& other) {
  Drift found;
  std::vector<double> norms;
  for (size_t step = 0; step < one.losses.size(); ++step) {
    found.loss = std::max(found.loss, std::abs(other.losses[step] / one.losses[step] - 1));
    if (step < static_cast<size_t>(kEarly)) found.early = found.loss;
    norms.push_back(std::abs(other.norms[step] / one.norms[step] - 1));
  }
  std::ranges::nth_element(norms, norms.begin() + static_cast<std::ptrdiff_t>(norms.size() / 2));
  found.norm = norms[norms.size() / 2];
  for (size_t i = 0; i < one.weights.size(); ++i)
    found.parameters = std::max(found.parameters, testing::distance(one.weights[i], other.weights[i]));
  return found;
}

void print(const std::string& what, const Drift& of) {
  std::cout << "| " << what << std::scientific << std::setprecision(1) << " | " << of.early << " | " << of.loss << " | "
            << of.norm << " | " << of.parameters << " |\n";
}

// The first steps differ by the rounding of one loss, so an error in a layout shows there. Later differences grow in
// training like those between float32 and float64 on one rank.
void expect_drift_of_rounding(const RunConfig& config, const std::vector<LaidOut>& layouts) {
  const Trajectory one = run_engine(config, kSteps);
  RunConfig wide = config;
  wide.model.dtype = "float64";
  print("one rank, from float64", drift(run_engine(wide, kSteps), one));
  for (const LaidOut& layout : layouts) {
    const Drift found = drift(one, run_engine(laid_out(config, layout), kSteps));
    print(described(layout), found);
    EXPECT_GT(found.parameters, 0) << described(layout) << ": equal bits are tested elsewhere";
    EXPECT_LE(found.early, 1e-6) << described(layout);
    EXPECT_LE(found.loss, 1e-4) << described(layout);
  }
}

const std::vector<LaidOut> kDense = {{"replicate=2"},
                                     {"tensor=2"},
                                     {"tensor=4"},
                                     {"context=2"},
                                     {"context=4"},
                                     {"context=2,tensor=2"},
                                     {"shard=2,pipeline=2", "optim_grads_params"},
                                     {"shard=2,context=2,tensor=2", "optim_grads_params"},
                                     {"context=2,tensor=2,pipeline=2"}};
const std::vector<LaidOut> kOfExperts = {{"replicate=2"},
                                         {"replicate=4,expert=4"},
                                         {"tensor=2"},
                                         {"tensor=4,expert=2,expert_tensor=2"},
                                         {"context=2"},
                                         {"context=4,expert=4"},
                                         {"context=2,tensor=2,expert=2,expert_tensor=2"},
                                         {"shard=2,context=2,tensor=2,expert=4,expert_tensor=1", "optim_grads_params"},
                                         {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"}};

TEST(Drift, OfADenseModelIsThatOfRounding) {
  expect_drift_of_rounding(recipe(0), kDense);
}

TEST(Drift, OfAModelWithExpertsIsThatOfRounding) {
  expect_drift_of_rounding(recipe(8), kOfExperts);
}

}  // namespace
}  // namespace witan
