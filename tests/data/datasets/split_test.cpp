#include "witan/data/datasets/split.h"

#include <algorithm>
#include <map>

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Every token of a counting dataset must be in exactly one part.
void expect_complete(const Split& split, int64_t total) {
  std::vector<int> seen(static_cast<size_t>(total), 0);
  for (const auto& part : {split.train, split.held_out}) {
    int64_t tokens = 0;
    for (int64_t d = 0; d < part->documents(); ++d)
      for (const int32_t token : read_document(*part, d)) ++tokens, ++seen[static_cast<size_t>(token)];
    EXPECT_EQ(tokens, part->tokens());
    EXPECT_GT(tokens, 0);
  }
  EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(total), 1));
}

TEST(Split, TakesWholeDocuments) {
  const auto dataset = MemoryDataset::counting(std::vector<int64_t>(1000, 20));
  const Split split = split_documents(dataset, {.held_out_fraction = 0.02});
  expect_complete(split, 20000);
  EXPECT_EQ(split.held_out->documents(), 20);
  EXPECT_EQ(split.train->documents(), 980);
  for (int64_t d = 0; d < 20; ++d) EXPECT_EQ(read_document(*split.held_out, d).front() % 20, 0);
}

TEST(Split, SplitsASingleDocument) {
  const Split split = split_documents(MemoryDataset::counting({1000}), {.held_out_fraction = 0.1});
  expect_complete(split, 1000);
  EXPECT_EQ(split.train->documents(), 1);
  EXPECT_EQ(split.train->length(0), 900);
  EXPECT_EQ(read_document(*split.held_out, 0).front(), 900);
  std::vector<int32_t> last(1);
  split.held_out->read(0, 99, last);
  EXPECT_EQ(last[0], 999);
}

TEST(Split, CoversEverythingForManyShapes) {
  const std::vector<std::vector<int64_t>> shapes = {
      {2}, {1, 1}, {0, 2, 0}, {500, 1, 1}, {1, 500}, {3, 0, 0, 700, 5}, {10, 20, 30, 40}, {1, 1, 1, 1, 1, 1, 1, 1}};
  for (const auto& shape : shapes)
    for (const double fraction : {0.001, 0.02, 0.3, 0.9})
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const auto dataset = MemoryDataset::counting(shape);
        SCOPED_TRACE(testing::PrintToString(shape));
        expect_complete(split_documents(dataset, {fraction, 1, seed}), dataset->tokens());
      }
}

TEST(Split, GivesEachPartItsMinimum) {
  const Split small =
      split_documents(MemoryDataset::counting({600, 400}), {.held_out_fraction = 0.001, .least_tokens = 65});
  EXPECT_GE(small.held_out->tokens(), 65);
  const Split tight =
      split_documents(MemoryDataset::counting({65, 65}), {.held_out_fraction = 0.9, .least_tokens = 65});
  EXPECT_EQ(tight.held_out->tokens(), 65);
  EXPECT_EQ(tight.train->tokens(), 65);
  EXPECT_THAT(message_of<DataError>([] {
                split_documents(MemoryDataset::counting({100}), {.held_out_fraction = 0.1, .least_tokens = 65});
              }),
              AllOf(HasSubstr("memory has 100 tokens"), HasSubstr("65"), HasSubstr("seq_length")));
}

TEST(Split, IsDeterministicAndDependsOnTheSeed) {
  const auto dataset = MemoryDataset::counting(std::vector<int64_t>(100, 10));
  const auto held_out = [&](uint64_t seed) {
    return read_all(*split_documents(dataset, {.held_out_fraction = 0.1, .seed = seed}).held_out);
  };
  EXPECT_EQ(held_out(1), held_out(1));
  EXPECT_NE(held_out(1), held_out(2));
}

TEST(Split, RefusesMeaninglessOptions) {
  const auto dataset = MemoryDataset::counting({100});
  for (const double fraction : {0.0, 1.0, -1.0})
    EXPECT_THROW(split_documents(dataset, {.held_out_fraction = fraction}), ConfigError);
  EXPECT_THROW(split_documents(dataset, {.least_tokens = 0}), ConfigError);
}

}  // namespace
}  // namespace witan
