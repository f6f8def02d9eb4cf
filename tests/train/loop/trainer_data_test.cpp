// The data of runs: samples of several datasets, and several epochs.
#include <fstream>
#include <set>
#include <string>

#include "support/message_of.h"
#include "train/loop/trainer_support.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/loop/trainer.h"

namespace witan {
namespace {

using test::message_of;
using testing::Trainer;

// A killed run resumes with the samples that it would have read, in two orders of samples.
TEST_F(Trainer, ResumesSamplesOfSeveralDatasetsBitwise) {
  RunConfig text = config("text");
  text.train.train_iters = 1;
  run(text);
  const std::string tokens = (folder_ / "text" / "data" / "tokens").string();
  const auto of = [&](const std::string& name, const std::string& samples) {
    RunConfig changed = config(name);
    changed.data.data.clear();
    changed.data.data_path = "1," + tokens + ",3," + tokens;
    changed.data.tokenizer = (folder_ / "text" / "tokenizer.json").string();
    changed.data.data_samples = samples;
    changed.data.split = "8,1,1";
    changed.data.data_cache_path = (folder_ / "cache").string();
    return changed;
  };
  for (const std::string samples : {"megatron", "witan"}) {
    const std::string whole = samples + "-whole", parts = samples + "-parts";
    run(of(whole, samples));
    run(of(parts, samples));
    fs::remove_all(checkpoint(parts, 12));
    fs::remove_all(checkpoint(parts, 8));
    EXPECT_EQ(run(of(parts, samples)).resumed_from, 4);
    EXPECT_EQ(weights(whole, 12), weights(parts, 12)) << samples;
    expect_same_steps(whole, parts);
    const Metrics metrics = read_metrics(folder_ / whole / "metrics.jsonl");
    EXPECT_GT(metrics.steps.back().epochs.value_or(0), metrics.steps.front().epochs.value_or(1));
    const std::string manifest = read_file(checkpoint(whole, 8) / "manifest.json");
    EXPECT_NE(manifest.find("\"sources\""), std::string::npos);
    if (samples == "witan") continue;
    ASSERT_TRUE(metrics.set_evals.contains("test"));
    ASSERT_EQ(metrics.set_evals.at("test").size(), 1u);
    EXPECT_EQ(metrics.set_evals.at("test")[0].step, 12) << "the test split is used only at the end";
  }
  RunConfig longer = of("megatron-whole", "megatron");
  longer.train.train_iters = 400;
  EXPECT_NE(message_of<DataError>([&] { run(longer); }).find("or the length of the run"), std::string::npos);
}

// Packed samples are the same in every layout and after resuming, across epochs and packing windows.
TEST_F(Trainer, ResumesPackedDocumentsInAnotherLayoutBitwise) {
  const auto packed = [&](const std::string& name, int64_t ranks, int64_t steps) {
    RunConfig config = this->config(name);
    config.data.data_packing = "best_fit";
    config.data.seq_length = 32;
    config.parallel = {static_cast<int>(ranks), 1, 1, true};
    config.train.train_iters = steps;
    return config;
  };
  run(packed("one", 1, 12));
  run(packed("moved", 4, 4));
  EXPECT_EQ(run(packed("moved", 2, 8)).resumed_from, 4);
  EXPECT_EQ(run(packed("moved", 1, 12)).resumed_from, 8);
  EXPECT_EQ(weights("one", 12), weights("moved", 12));
  expect_same_steps("one", "moved");
  const std::string log = read_file(folder_ / "one" / "train.log");
  EXPECT_NE(log.find("% of it padding (data_packing = best_fit): "), std::string::npos);
  EXPECT_NE(log.find(" would be end to end"), std::string::npos);
  RunConfig other = packed("one", 1, 14);
  other.data.data_packing = "none";
  EXPECT_EQ(changed_identity(packed("one", 1, 12), other),
            std::vector<std::string>{R"(data_packing = "none" (was "best_fit"))"});
}

TEST_F(Trainer, WarnsOfEachDatasetThatItRepeats) {
  RunConfig again = config("each");
  const std::string text = (folder_ / "other.txt").string();
  std::ofstream(text) << std::string(2000, 'a') << read_file(again.data.data);
  again.data.data_weights = "3,1";
  again.data.data += "," + text;
  again.data.seq_length = 64;
  again.train.train_iters = 60;
  again.train.save_interval = 0;
  again.optimizer.lr_decay_iters = 60;
  run(again);
  const std::string log = read_file(folder_ / "each" / "train.log");
  std::set<std::string> named;
  const std::string begins = "the second epoch of ";
  for (size_t at = 0; (at = log.find(begins, at)) != std::string::npos; at += begins.size())
    EXPECT_TRUE(named.insert(log.substr(at + begins.size(), log.find(" begins;", at) - at - begins.size())).second)
        << "once for each";
  EXPECT_EQ(named.size(), 2u);
}

TEST_F(Trainer, WarnsWhenItRepeatsData) {
  RunConfig again = config("again");
  again.data.seq_length = 64;
  again.train.train_iters = 40;
  again.train.save_interval = 0;
  again.optimizer.lr_decay_iters = 40;
  run(again);
  const std::string log = read_file(folder_ / "again" / "train.log");
  const size_t warned = log.find("the second epoch of ");
  ASSERT_NE(warned, std::string::npos);
  EXPECT_EQ(log.find("the second epoch of ", warned + 1), std::string::npos) << "once";
  EXPECT_GT(steps("again").back().epochs.value_or(0), 1);
}

}  // namespace
}  // namespace witan
