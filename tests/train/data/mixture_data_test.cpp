#include "witan/train/data/mixture_data.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

std::string refusal(const DataConfig& config) {
  return test::message_of<ConfigError>([&] { check_datasets(config); });
}

DataConfig of_shards(const std::string& path, const std::string& weights = "") {
  DataConfig config;
  config.data_path = path, config.data_weights = weights;
  return config;
}

TEST(CheckDatasets, AWeightIsNotADataset) {
  EXPECT_EQ(
      refusal(of_shards("1,a,b")),
      "data_path: 1 stands in the place of a dataset, and there is no 1.bin: if it is a weight, write weights and "
      "prefixes by turns, a weight before each prefix, or prefixes alone");
  EXPECT_NO_THROW(check_datasets(of_shards("2,a,1,b")));
  EXPECT_NO_THROW(check_datasets(of_shards("a,b")));
  const test::TempFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  write_file_atomically("2024.bin", "");
  EXPECT_NO_THROW(check_datasets(of_shards("a,2024,b"))) << "years as names";
  fs::current_path(before);
  DataConfig split;
  split.train_data_path = "a", split.valid_data_path = "b,0.5,c";
  EXPECT_TRUE(refusal(split).starts_with("valid_data_path: 0.5 stands")) << refusal(split);
}

TEST(CheckDatasets, EveryDatasetNeedsAWeight) {
  EXPECT_EQ(refusal(of_shards("a,b", "3,1,1")),
            "data_weights = 3,1,1: 3 weights for 2 datasets: give one for each, with commas between them");
  EXPECT_EQ(refusal(of_shards("a,b", "3,many")),
            "data_weights = 3,many: many is not a number from 0 on: give a weight for each dataset, as 3,1");
  EXPECT_EQ(refusal(of_shards("a,b", "0,0")), "data_weights = 0,0: no dataset has a weight above 0");
  EXPECT_EQ(refusal(of_shards("2,a,1,b", "3,1")),
            "data_weights = 3,1, and data_path has weights of its own: give one of the two");
  EXPECT_NO_THROW(check_datasets(of_shards("a,b", "3,0")));
  DataConfig text;
  text.data = "a.txt,b.txt", text.data_weights = "1";
  EXPECT_EQ(refusal(text), "data_weights = 1: 1 weight for 2 datasets: give one for each, with commas between them");
  text.data_weights = "", text.data_schedule = "5=1";
  EXPECT_TRUE(refusal(text).starts_with("data_schedule from step 5 = 1: 1 weight for 2 datasets")) << refusal(text);
}

TEST(CheckDatasets, SplitsMustBeShares) {
  DataConfig config;
  config.split = "99;1";
  EXPECT_EQ(refusal(config), "split = 99;1 must be up to three shares, of training, validation and test, as 969,30,1");
}

}  // namespace
}  // namespace witan
