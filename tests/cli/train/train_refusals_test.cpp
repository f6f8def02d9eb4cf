// Errors of `witan train` before any work, and the files that a failed start leaves.
#include "cli/train/train_command.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class TrainRefusals : public TrainCommandTest {};

TEST_F(TrainRefusals, RefusesRunsThatDoNotFitBeforeStarting) {
  const Said huge = train({"--ffn-hidden-size", "1000000000"});
  EXPECT_EQ(huge.code, 8) << huge.err;
  for (const char* word : {"are usable", "IT DOES NOT FIT", "arena", "reduce num_layers"})
    EXPECT_NE(huge.err.find(word), std::string::npos) << word << " in\n" << huge.err;
  EXPECT_FALSE(fs::exists(own_ / "runs/default/checkpoints"));
}

TEST_F(TrainRefusals, ReportsProblemsOfTheData) {
  EXPECT_EQ(train({"--data", own_ / "nowhere"}).code, 4);
  write_text(own_ / "empty.txt", "");
  const Said empty = train({"--data", own_ / "empty.txt", "--run", "empty"});
  EXPECT_EQ(empty.code, 4);
  EXPECT_NE(empty.err.find("there is no text: 1 file of 0 bytes"), std::string::npos) << empty.err;
}

TEST_F(TrainRefusals, ExpertsUseTheRanksThatDivideThem) {
  const Said plan =
      witan({"plan", "--expert-model-parallel-size", "8", "--micro-batch-size", "1", "--runs-folder", own_ / "runs"});
  EXPECT_NE(plan.out.find("  0-7 "), std::string::npos) << plan.out << plan.err;
  const Said uneven =
      witan({"plan", "--expert-model-parallel-size", "4", "--micro-batch-size", "4", "--runs-folder", own_ / "runs"});
  EXPECT_EQ(uneven.code, 3);
  EXPECT_NE(uneven.err.find("is not divisible by ranks = 4"), std::string::npos) << uneven.err;
  EXPECT_NE(uneven.err.find(", micro_batch_size to 2, or ranks"), std::string::npos) << uneven.err;
}

TEST_F(TrainRefusals, RefusesImpossibleLayouts) {
  const Said experts = train({"--ranks", "4", "--expert-model-parallel-size", "4", "--micro-batch-size", "1"});
  EXPECT_EQ(experts.code, 3);
  EXPECT_NE(experts.err.find("expert_model_parallel_size"), std::string::npos) << experts.err;
  EXPECT_EQ(train({"--ranks", "3"}).code, 3);
}

TEST_F(TrainRefusals, AStartThatFailedBeforeTrainingDoesNotAffectTheNext) {
  const Said failed = train({"--seq-length", "15000"});  // enough bytes for two samples, but not enough tokens
  EXPECT_EQ(failed.code, 4) << failed.err;
  ASSERT_TRUE(fs::exists(own_ / "runs/default/tokenizer.json"));
  ASSERT_FALSE(fs::exists(own_ / "runs/default/config.toml"));
  write_text(own_ / "other/a.txt", [] {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "quite another text, of quite another kind, with quite other words\n\n";
    return text;
  }());
  const Said other = train({"--data", own_ / "other", "--tokenizer-vocab-size", "290"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_NE(other.err.find("tokenizer    trained anew: "), std::string::npos) << other.err;
  EXPECT_EQ(other.err.find("left out"), std::string::npos) << other.err;
  ASSERT_EQ(witan({"tokenizer", "train", own_ / "other", "--vocab-size", "290", "--output", own_ / "t.json"}).code, 0);
  EXPECT_EQ(read_text(own_ / "runs/default/tokenizer.json"), read_text(own_ / "t.json"));
}

TEST_F(TrainRefusals, WorkOfAFailedStartIsReused) {
  EXPECT_EQ(train({"--seq-length", "15000"}).code, 4);  // enough bytes in the text, but not enough tokens
  const Said said = train();
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_NE(said.err.find("tokenizer.json (trained before)"), std::string::npos) << said.err;
  EXPECT_NE(said.err.find("(tokenized before)"), std::string::npos) << said.err;
}

TEST_F(TrainRefusals, AStartThatFailsBeforeAnyWorkLeavesNoFolder) {
  ASSERT_EQ(witan({"tokenizer", "train", own_ / "text", "--vocab-size", "290", "--output", own_ / "t.json"}).code, 0);
  write_text(own_ / "empty.txt", "");
  write_text(own_ / "short.txt", "the king and his council");
  ASSERT_EQ(witan({"data", own_ / "short.txt", "--tokenizer", own_ / "t.json", "--output", own_ / "short"}).code, 0);
  const std::string tokenizer = own_ / "t.json";
  const auto expect_none = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"train", "--run", "junk", "--runs-folder", own_ / "runs"};
    args.insert(args.end(), more.begin(), more.end());
    const Said said = witan(args);
    EXPECT_NE(said.code, 0) << said.err;
    EXPECT_FALSE(fs::exists(own_ / "runs/junk")) << said.err;
  };
  expect_none({"--data-path", own_ / "nowhere", "--tokenizer", tokenizer});
  expect_none({"--data-path", own_ / "short", "--tokenizer", tokenizer});
  expect_none({"--data", own_ / "short.txt"});
  expect_none({"--data", own_ / "text", "--valid-data", "own=" + (own_ / "short.txt").string()});
  write_text(own_ / "rather.txt",
             some_text(7));  // enough bytes for a sample, but not enough tokens, as tokenizing shows
  expect_none(
      {"--data", own_ / "text", "--tokenizer", tokenizer, "--valid-data", "own=" + (own_ / "rather.txt").string()});
  expect_none({"--data", own_ / "empty.txt"});
  expect_none({"--data", own_ / "empty.txt", "--tokenizer", tokenizer});
  expect_none({"--data", own_ / "nowhere", "--tokenizer", tokenizer});
  write_text(own_ / "runs/junk/notes.txt", "mine");
  EXPECT_NE(witan({"train", "--run", "junk", "--runs-folder", own_ / "runs", "--data", own_ / "empty.txt"}).code, 0);
  EXPECT_EQ(read_text(own_ / "runs/junk/notes.txt"), "mine");
}

TEST_F(TrainRefusals, AcceptsListsWithSpacesOrCommas) {
  const auto text_of = [&](const std::string& run, const std::vector<std::string>& data) {
    std::vector<std::string> args = {"train", "--run", run, "--runs-folder", own_ / "runs"};
    args.insert(args.end(), data.begin(), data.end());
    args.insert(args.end(), {"--train-iters", "1", "--seq-length", "16", "--hidden-size", "16", "--num-layers", "1",
                             "--num-experts", "2", "--ffn-hidden-size", "16", "--sample-tokens", "0"});
    const Said said = witan(args);
    EXPECT_EQ(said.code, 0) << said.err;
    const size_t at = said.err.find("text         ");
    return said.err.substr(at, said.err.find(" to train on", at) - at);
  };
  const std::string a = own_ / "text/1.txt", b = own_ / "text/2.txt";
  const std::string both = text_of("commas", {"--data", a + "," + b});
  EXPECT_NE(both.find("2 documents"), std::string::npos) << both;
  EXPECT_EQ(text_of("blanks", {"--data", a, b}), both);
  EXPECT_EQ(text_of("again", {"--data", a, "--data", b}), both);
  EXPECT_NE(text_of("one", {"--data", a}).find(" in 1 document: "), std::string::npos);
}

TEST_F(TrainRefusals, RefusesAnotherEncodingBeforeAnyWork) {
  EXPECT_EQ(train().code, 0);
  write_text(own_ / "text/zz.txt", some_text(30) + "caf\xe9");
  const Said said = train({"--fresh"});
  EXPECT_EQ(said.code, 4);
  EXPECT_NE(said.err.find("zz.txt: byte "), std::string::npos) << said.err;
  EXPECT_NE(said.err.find("--replace-invalid-utf8"), std::string::npos) << said.err;
  EXPECT_FALSE(fs::exists(own_ / "runs/default.1")) << "the existing run was not archived";
  const Said replaced = train({"--fresh", "--replace-invalid-utf8"});
  EXPECT_EQ(replaced.code, 0) << replaced.err;
  EXPECT_NE(replaced.err.find("warning: U+FFFD replaces 1 byte sequence that is not UTF-8"), std::string::npos);
}

TEST_F(TrainRefusals, ReportsFilesOfAFolderThatAreNotText) {
  write_text(own_ / "text/picture.png", std::string("\x89PNG\0\0", 6));
  fs::create_symlink("nowhere", own_ / "text/link");
  const Said said = train();
  EXPECT_EQ(said.code, 0) << said.err;
  const std::string told = "left out: 1 binary file (" + (own_ / "text/picture.png").string() + "), 1 broken link (";
  EXPECT_NE(said.err.find("warning: " + told), std::string::npos) << said.err;
  EXPECT_NE(read_text(own_ / "runs/default/train.log").find(told), std::string::npos);
}

TEST_F(TrainRefusals, RefusesNamesThatMeanACheckpoint) {
  for (const char* command : {"train", "plan"})
    expect_refusal({command, "--runs-folder", own_ / "runs", "--run", "a@best"}, 3,
                   {"run = \"a@best\": a new run's name has no @", "pick another name with --run"});
  EXPECT_FALSE(fs::exists(own_ / "runs"));
}

TEST_F(TrainRefusals, RefusesRunsWhoseCheckpointsDoNotFitOnTheDisk) {
  const Said said = train({"--keep-last", "1000000000000", "--train-iters", "1000000000000", "--save-interval", "1"});
  EXPECT_EQ(said.code, 9) << said.err;
  for (const char* piece : {"the run keeps 1000000000000 checkpoints of ", " are free on that disk. Free ",
                            "keep fewer (--keep-last ", "--runs-folder FOLDER"})
    EXPECT_NE(said.err.find(piece), std::string::npos) << piece << " in " << said.err;
  EXPECT_FALSE(fs::exists(own_ / "runs/default/tokenizer.json")) << "before any work";
}

}  // namespace
}  // namespace witan::test
