// What runs read: samples of several datasets, and data that is read again.
#include <string>

#include "support/message_of.h"
#include "train/run/trainer_support.h"
#include "witan/train/run/trainer.h"

namespace witan {
namespace {

using test::message_of;
using testing::Trainer;

// Shards of the text, in two orders of samples: a run that is killed resumes with the samples that it would have read.
TEST_F(Trainer, ResumesAmongSamplesOfSeveralDatasetsToTheBit) {
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
    EXPECT_EQ(metrics.set_evals.at("test")[0].step, 12) << "the test split is for the end";
  }
  RunConfig longer = of("megatron-whole", "megatron");
  longer.train.train_iters = 400;
  EXPECT_NE(message_of<DataError>([&] { run(longer); }).find("or the length of the run"), std::string::npos);
}

TEST_F(Trainer, WarnsWhereItReadsDataAgain) {
  RunConfig again = config("again");
  again.data.seq_length = 64;
  again.train.train_iters = 40;
  again.train.save_interval = 0;
  again.optimizer.lr_decay_iters = 40;
  run(again);
  const std::string log = read_file(folder_ / "again" / "train.log");
  const size_t warned = log.find("was read once, and is read again from here on: ");
  ASSERT_NE(warned, std::string::npos);
  EXPECT_EQ(log.find("is read again", warned + 60), std::string::npos) << "once";
  EXPECT_GT(steps("again").back().epochs.value_or(0), 1);
}

}  // namespace
}  // namespace witan
