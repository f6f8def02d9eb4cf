#include "witan/data/rows/sorted_run.h"

#include <algorithm>
#include <numeric>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/rows/shuffle_rows.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

class SortedRunsTest : public ::testing::Test {
 protected:
  // Three runs of rows "0", "1" ..., and their keys.
  void SetUp() override {
    for (int run = 0; run < 3; ++run) {
      RunBuffer buffer;
      for (int i = 0; i < 200; ++i) {
        const int row = 200 * run + i;
        keys_.push_back(shuffle_key(5, 0, row));
        buffer.add(keys_.back(), std::to_string(row));
      }
      paths_.push_back(folder_ / cat("run-", run));
      buffer.write(paths_.back());
      EXPECT_EQ(buffer.rows(), 0U);
    }
  }
  std::vector<std::string> rows_of(const RunSlice& slice) const {
    std::vector<std::string> rows;
    for (size_t i = 0; i < slice.rows.size(); ++i) rows.emplace_back(slice.row(i));
    return rows;
  }

  TempFolder folder_;
  std::vector<fs::path> paths_;
  std::vector<RowKey> keys_;
};

TEST_F(SortedRunsTest, SlicesHoldAllRowsInKeyOrder) {
  std::vector<size_t> order(keys_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return keys_[i]; });
  std::vector<std::string> expected;
  for (const size_t i : order) expected.push_back(std::to_string(i));

  const SortedRuns runs(paths_);
  EXPECT_EQ(rows_of(runs.load(0, kKeyRanges)), expected);
  std::vector<std::string> joined;
  for (const auto& [first, last] : {std::pair(0U, 1U), {1U, 30000U}, {30000U, 65535U}, {65535U, kKeyRanges}})
    for (std::string& row : rows_of(runs.load(first, last))) joined.push_back(std::move(row));
  EXPECT_EQ(joined, expected);
}

TEST_F(SortedRunsTest, MeasuresRangesOfKeys) {
  const std::vector<uint64_t> bytes = SortedRuns(paths_).measure();
  ASSERT_EQ(bytes.size(), kKeyRanges);
  uint64_t text = 0;
  for (size_t i = 0; i < keys_.size(); ++i) text += std::to_string(i).size();
  EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}), text + keys_.size() * kRowOverhead);
  EXPECT_GT(bytes[keys_[0].high >> 48], 0U);
}

TEST_F(SortedRunsTest, ErrorsNameADamagedRun) {
  std::string run = read_file(paths_[1]);
  put(paths_[1], run.substr(0, run.size() - 1));
  EXPECT_THAT(message_of<CorruptionError>([&] { SortedRuns(paths_).measure(); }), HasSubstr("run-1 is damaged"));
  run[0] = 'X';
  put(paths_[1], run);
  EXPECT_THAT(message_of<CorruptionError>([&] { SortedRuns(paths_).load(0, 5); }), HasSubstr("run-1 is damaged"));
}

TEST_F(SortedRunsTest, ClosesADamagedRun) {
  put(paths_[1], "no run");
  const auto open_files = [] {
    const fs::directory_iterator descriptors("/proc/self/fd");
    return std::distance(begin(descriptors), end(descriptors));
  };
  const auto before = open_files();
  for (int i = 0; i < 5; ++i) EXPECT_THROW(SortedRuns(paths_).measure(), CorruptionError);
  EXPECT_EQ(open_files(), before);
}

TEST(ShuffleKey, DiffersForEveryRow) {
  std::vector<RowKey> keys;
  for (size_t source = 0; source < 30; ++source)
    for (int64_t position = 1; position <= 300; ++position) keys.push_back(shuffle_key(1, source, position));
  std::ranges::sort(keys);
  EXPECT_EQ(std::ranges::adjacent_find(keys), keys.end());
  EXPECT_NE(shuffle_key(2, 0, 1), shuffle_key(1, 0, 1));
}

}  // namespace
}  // namespace witan
