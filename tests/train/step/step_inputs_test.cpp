#include "witan/train/step/step_inputs.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/base/error.h"
#include "witan/data/batches/batch.h"

namespace witan {
namespace {

using test::message_of;
using testing::Rank;
using Floats = std::vector<float>;

// Two rows of three tokens that differ between batches.
Batch batch_of(float first) {
  Batch batch;
  batch.sequences = 2;
  batch.sequence_length = 3;
  for (auto* ids : {&batch.tokens, &batch.targets, &batch.positions, &batch.sequence_ids}) ids->assign(6, 0);
  batch.loss_mask.assign(6, 1);
  batch.loss_tokens = 6;
  batch.columns = {{{"advantages"}, {first, 1, 2, 3, 4, 5}}, {{"rewards", ColumnSpec::Per::sample}, {first, 7}}};
  return batch;
}

TEST(StepInputs, ColumnsKeepTheirAddressesFromStepToStep) {
  Rank rank(1);
  const std::vector<Batch> batches = {batch_of(8), batch_of(9)};
  StepInputs inputs(rank.stream, batches, 1);
  std::vector<const void*> addresses;
  for (const float step : {0.0f, 10.0f}) {
    const std::vector<Batch> own = {batch_of(8 + step), batch_of(9 + step)};
    inputs.upload(rank.stream, own, {{look_ahead(own[0], 1), look_ahead(own[1], 1)}});
    std::vector<const void*> found;
    for (const int64_t i : {0, 1}) {
      const float first = 8 + step + static_cast<float>(i);
      const Tensor& tokens = inputs.column(i, "advantages");
      EXPECT_EQ(tokens.shape(), Shape({6}));
      EXPECT_EQ(tokens.to_vector<float>(), (Floats{first, 1, 2, 3, 4, 5}));
      EXPECT_EQ(inputs.column(i, "advantages", 1).to_vector<float>(), (Floats{1, 2, 0, 4, 5, 0})) << "one ahead";
      EXPECT_EQ(inputs.column(i, "rewards").to_vector<float>(), (Floats{first, 7}));
      EXPECT_EQ(inputs.column(i, "rewards", 1).to_vector<float>(), (Floats{first, 7}));
      found.push_back(tokens.raw());
      found.push_back(inputs.column(i, "rewards").raw());
    }
    if (addresses.empty()) addresses = found;
    EXPECT_EQ(found, addresses);
  }
}

TEST(StepInputs, AcceptOnlyBatchesWithTheSameColumns) {
  Rank rank(1);
  const std::vector<Batch> batches = {batch_of(0)};
  const StepInputs inputs(rank.stream, batches);
  EXPECT_TRUE(inputs.fits({batch_of(5)}));
  std::vector<Batch> fewer = batches;
  fewer[0].columns.pop_back();
  EXPECT_FALSE(inputs.fits(fewer));
  EXPECT_EQ(message_of<Error>([&] { inputs.column(0, "values"); }),
            "the step's batches have no column \"values\": Objective::columns() must name those that it reads");
}

}  // namespace
}  // namespace witan
