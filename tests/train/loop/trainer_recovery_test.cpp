// Runs with lost, damaged or changed files.
#include <fstream>

#include "support/message_of.h"
#include "train/loop/trainer_support.h"
#include "witan/train/loop/trainer.h"

namespace witan {
namespace {

using test::message_of;
using testing::Trainer;

// Steps lost after the last checkpoint are repeated with the same results.
TEST_F(Trainer, ContinuesFromTheLastCompleteCheckpoint) {
  run(config("whole"));
  run(config("torn"));
  fs::remove_all(checkpoint("torn", 12));
  std::string shard = read_file(checkpoint("torn", 8) / "shard-00001.safetensors");
  shard[shard.size() / 2] = static_cast<char>(shard[shard.size() / 2] ^ 1);
  std::ofstream(checkpoint("torn", 8) / "shard-00001.safetensors", std::ios::binary) << shard;
  EXPECT_EQ(run(config("torn")).resumed_from, 4);
  EXPECT_EQ(weights("whole", 12), weights("torn", 12));
  expect_same_steps("whole", "torn");
}

TEST_F(Trainer, StartsOverIfItNeverSaved) {
  run(config("whole"));
  run(config("early"));
  fs::remove_all(folder_ / "early" / "checkpoints");
  const fs::path metrics = folder_ / "early" / "metrics.jsonl";
  const std::string text = read_file(metrics);
  write_file_atomically(metrics, text.substr(0, text.find("{\"kind\":\"save\"")));
  EXPECT_EQ(run(config("early")).resumed_from, 0);
  EXPECT_EQ(weights("whole", 12), weights("early", 12));
  expect_same_steps("whole", "early");
}

TEST_F(Trainer, RefusesToResumeWithOtherTokens) {
  RunConfig first = config("changed");
  first.train.train_iters = 4;
  run(first);
  std::ofstream(folder_ / "text.jsonl", std::ios::app) << "{\"text\": \"one more row of grain\"}\n";
  run(config("other"));
  for (const char* file : {"tokens.idx", "tokens.bin"})
    fs::copy_file(folder_ / "other" / "data" / file, folder_ / "changed" / "data" / file,
                  fs::copy_options::overwrite_existing);
  const fs::path metrics = folder_ / "changed" / "metrics.jsonl";
  const std::string record = read_file(metrics);
  const std::string message = message_of<DataError>([&] { run(config("changed")); });
  EXPECT_NE(message.find("the text has changed"), std::string::npos) << message;
  EXPECT_NE(message.find("changed/data/tokens.bin was written after it)"), std::string::npos) << message;
  EXPECT_EQ(read_file(metrics), record) << "no step was made: the run remains finished";
  EXPECT_EQ(read_metrics(metrics).end->reason, "finished");
  EXPECT_NE(read_file(folder_ / "changed" / "train.log").find("the text has changed"), std::string::npos);
}

// A run with only damaged checkpoints must not silently start over.
TEST_F(Trainer, StopsIfAllCheckpointsAreDamaged) {
  run(config("damaged"));
  for (const int64_t step : {4, 8, 12}) fs::resize_file(checkpoint("damaged", step) / "shard-00001.safetensors", 100);
  const std::string message = message_of<CheckpointError>([&] { run(config("damaged")); });
  EXPECT_NE(message.find("no checkpoint is intact"), std::string::npos) << message;
  EXPECT_NE(message.find("--fresh"), std::string::npos) << message;
  EXPECT_EQ(steps("damaged").size(), 12u) << "the run's figures still exist";
  EXPECT_TRUE(fs::exists(checkpoint("damaged", 12)));
}

// The checkpoints are missing, but the records list some.
TEST_F(Trainer, StopsIfCheckpointsAreLost) {
  run(config("lost"));
  const fs::path checkpoints = folder_ / "lost" / "checkpoints";
  const std::string record = read_file(folder_ / "lost" / "metrics.jsonl");
  fs::rename(checkpoints, folder_ / "elsewhere");
  const std::string lost = message_of<CheckpointError>([&] { run(config("lost")); });
  EXPECT_NE(lost.find("metrics.jsonl says that the checkpoint of step 12 was saved, but there is none in checkpoints. "
                      "Restore one from a copy, or start over with --fresh"),
            std::string::npos)
      << lost;
  fs::create_symlink(folder_ / "nowhere", checkpoints);
  const std::string link = message_of<CheckpointError>([&] { run(config("lost")); });
  EXPECT_NE(link.find(cat("checkpoints is a link to ", (folder_ / "nowhere").string(), ", where no folder is: mount")),
            std::string::npos)
      << link;
  EXPECT_EQ(read_file(folder_ / "lost" / "metrics.jsonl"), record);
  fs::remove(checkpoints);
  fs::create_symlink(folder_ / "elsewhere", checkpoints);
  RunConfig longer = config("lost");
  longer.train.train_iters = 14;
  EXPECT_EQ(run(longer).resumed_from, 12);
}

TEST_F(Trainer, ContinuesDespiteDamagedMetrics) {
  run(config("whole"));
  RunConfig first = config("figures");
  first.train.train_iters = 8;
  run(first);
  std::string text = read_file(folder_ / "figures" / "metrics.jsonl");
  text[1] = '#';
  text[text.find(R"("step":3,)")] = '#';
  std::ofstream(folder_ / "figures" / "metrics.jsonl", std::ios::binary) << text;
  EXPECT_EQ(run(config("figures")).resumed_from, 8);
  EXPECT_EQ(weights("whole", 12), weights("figures", 12));
  EXPECT_EQ(read_file(folder_ / "figures" / "metrics.jsonl.damaged"), text);
  EXPECT_EQ(steps("figures").size(), 11u) << "all but the one on the damaged line";
}

}  // namespace
}  // namespace witan
