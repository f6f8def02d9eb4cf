#include "witan/cli/run.h"

#include <fmt/core.h>

#include <memory>
#include <new>

#include "cli/cli_support.h"
#include "witan/cli/other_names.h"

namespace witan::test {
namespace {

const std::vector<std::string> kCommands = {"doctor", "data",     "tokenizer", "import", "plan",  "train",
                                            "eval",   "generate", "export",    "report", "bench", "help"};

TEST(RunTest, ShowsCommandsWithoutArguments) {
  const Said said = witan({});
  EXPECT_EQ(said.code, 0);
  EXPECT_EQ(said.err, "");
  for (const std::string& command : kCommands) EXPECT_TRUE(contains(said.out, "\n  " + command + " ")) << command;
  EXPECT_EQ(witan({"--help"}).out, said.out);
  EXPECT_EQ(witan({"help"}).out, said.out);
}

TEST(RunTest, PrintsItsVersion) {
  const Said said = witan({"--version"});
  EXPECT_EQ(said.code, 0);
  EXPECT_TRUE(said.out.starts_with("witan ")) << said.out;
}

TEST(RunTest, EveryCommandHasHelpWithExamples) {
  for (const std::string& command : kCommands) {
    const Said said = witan({command, "--help"});
    EXPECT_EQ(said.code, 0) << command;
    EXPECT_TRUE(contains(said.out, "usage: witan " + command)) << said.out;
    EXPECT_TRUE(contains(said.out, "examples:\n  witan ")) << said.out;
    EXPECT_EQ(witan({"help", command}).out, said.out) << command;
  }
}

TEST(RunTest, HelpReachesInnerCommands) {
  const Said said = witan({"help", "tokenizer", "encode"});
  EXPECT_EQ(said.code, 0);
  EXPECT_TRUE(contains(said.out, "usage: witan tokenizer encode [text...]")) << said.out;
  EXPECT_EQ(witan({"tokenizer", "encode", "--help"}).out, said.out);
  expect_refusal({"help", "generat"}, 2, {"unknown command generat", "did you mean generate?"});
}

TEST(RunTest, HelpKeepsToItsWidth) {
  for (const std::string& command : kCommands) {
    std::istringstream lines(witan({command, "--help"}).out);
    bool options = false;
    for (std::string line; std::getline(lines, line);) {
      options |= line == "general:";
      if (line == "examples:") break;
      if (options && line.find("  --") != 0) {
        EXPECT_LE(line.size(), 101) << line;
      }
    }
  }
}

TEST(RunTest, RefusalsOfUnknownCommandsAndFlagsSuggestOne) {
  expect_refusal({"trian"}, 2, {"unknown command trian", "did you mean train?"});
  expect_refusal({"trian", "--seed", "3"}, 2, {"unknown command trian"});
  expect_refusal({"--verison"}, 2, {"unknown flag --verison", "did you mean --version?"});
  expect_refusal({"generate", "--temprature=2"}, 2, {"witan generate: unknown flag --temprature (", "--temperature?"});
  expect_refusal({"train", "--moe-router-topkk", "2"}, 2, {"unknown flag --moe-router-topkk", "--moe-router-topk?"});
  expect_refusal({"chat", "two", "words"}, 2, {"unexpected argument two"});
  expect_refusal({"tokenizer"}, 2, {"give a subcommand: train, encode, decode, inspect"});
  expect_refusal({"tokenizer", "encod"}, 2, {"witan tokenizer: unknown command encod", "did you mean encode?"});
}

TEST(RunTest, KnowsFlagsOfOtherPrograms) {
  for (const auto& [other, ours] : {std::pair{"--seq-len", "--seq-length"},
                                    {"--learning-rate", "--lr"},
                                    {"--learning_rate", "--lr"},
                                    {"--max-steps", "--train-iters"},
                                    {"--n_layer", "--num-layers"},
                                    {"--learing-rate", "--lr"},
                                    {"--max-stpes", "--train-iters"},
                                    {"--tensor-parallel", "--tensor-model-parallel-size"},
                                    {"--model_name_or_path", "--init-from"},
                                    {"--num_local_experts", "--num-experts"},
                                    {"--training.seq_len", "--seq-length"},
                                    {"--parallelism.tensor_parallel_degree", "--tensor-model-parallel-size"},
                                    {"--epsilon_high", "--clip-ratio-high"},
                                    {"--n_samples_per_prompt", "--num-generations"},
                                    {"--warmup-steps", "--lr-warmup-iters"}})
    for (const char* command : {"train", "plan"})
      expect_refusal({command, other, "3"}, 2,
                     {std::string("unknown flag ") + other + " (did you mean " + ours + "?)"});
  for (const auto& [other, way] : {std::pair{"--resume", ": a run is resumed by its name: `witan train --run NAME`"},
                                   {"--epochs", "counted in steps: --train-iters N"},
                                   {"--num-epochs", "--train-iters N"},
                                   {"--warmup-ratio", "--lr-warmup-iters N"},
                                   {"--compile", "captured as one CUDA graph"},
                                   {"--grad-accum", "--global-batch-size"},
                                   {"--gradient-accumulation-steps", "--global-batch-size"},
                                   {"--output-dir", "--runs-folder FOLDER --run NAME"},
                                   {"--wandb", "docs/formats/tensorboard.md has a script"},
                                   {"--beta", "by --kl-loss-coef with --objective policy, and by --dpo-beta"},
                                   {"--num_iterations", "--steps-per-generation N"},
                                   {"--use-vllm", "sampled by the training weights"}})
    expect_refusal({"train", other, "3"}, 2, {std::string("unknown flag ") + other + ": ", way});
  expect_refusal({"train", "--warmup_raito", "3"}, 2, {"--warmup_raito (did you mean --warmup-ratio? the warm-up is"});
  expect_refusal({"chat", "--epochs", "3"}, 2, {"witan chat: unknown flag --epochs;"});
}

TEST(RunTest, KnowsObjectivesByTheirMethods) {
  for (const auto& [method, objective] : {std::pair{"grpo", "policy"}, {"dapo", "policy"}, {"dpo", "preference"}})
    expect_refusal(
        {"train", "--objective", method}, 3,
        {std::string("objective = ") + method + ": must be one of ", std::string("mean ") + objective + "?)"});
}

// A suggested name must exist here, or it would never be offered.
TEST(RunTest, FlagsOfOtherProgramsMapToFlagsOfTrain) {
  for (const auto& [other, ours] : other_flags())
    expect_refusal({"train", std::string(other), "3"}, 2, {" (did you mean " + std::string(ours) + "?)"});
}

// This also holds where the command could take the word as an argument, with any flags of the subcommand after it.
TEST(RunTest, RefusalsOfMistypedSubcommandsSuggestOne) {
  const std::vector<std::vector<std::string>> commands = {
      {"data", "shuffle"}, {"data", "prepare"}, {"tokenizer", "encode"}, {"bench", "step"}};
  for (const auto& [command, name] :
       {std::pair{commands[0], "shufle"}, {commands[1], "preprae"}, {commands[2], "encod"}, {commands[3], "stpe"}})
    expect_refusal({command[0], name, "--some-flag", "3"}, 2,
                   {"witan " + command[0] + ": unknown command " + name + " (did you mean " + command[1] + "?)"});
}

TEST(RunTest, KnowsCommandsOfOtherPrograms) {
  expect_refusal({"runs", "list"}, 2, {"witan runs: unknown command list: `", "witan runs` itself lists them"});
  expect_refusal({"runs", "rm", "base"}, 2, {"unknown command rm (did you mean remove?)"});
  expect_refusal({"ls"}, 2, {"unknown command ls (did you mean runs?)"});
  for (const std::string command : {"finetune", "grpo", "dpo"})
    expect_refusal({command}, 2, {"unknown command " + command + " (did you mean train?)"});
}

TEST(RunTest, NamesUnknownFlagsBeforeMissingOnes) {
  expect_refusal({"tokenizer", "train", "--outptu", "x.json"}, 2, {"unknown flag --outptu", "did you mean --output?"});
  expect_refusal({"tokenizer", "train"}, 2, {"witan tokenizer train: ", "required"});
}

TEST(RunTest, RefusesValuesOfTheWrongType) {
  expect_refusal({"generate", "--max-tokens", "many"}, 2, {"witan generate: ", "--max-tokens", "many"});
  expect_refusal({"generate", "--max-tokens"}, 2, {"witan generate: --max-tokens needs a value; `witan generate"});
  expect_refusal({"train", "--lr"}, 2, {"witan train: --lr needs a value"});
  expect_refusal({"generate", "--threads", "-2"}, 2, {"--threads", "-2"});
  expect_refusal({"generate", "--seed", "1", "--seed", "2"}, 2,
                 {"--seed is given twice, with 1 and with 2: give it once"});
  expect_refusal({"plan", "--lr", "1", "--num-layers", "2", "--lr=3"}, 2, {"--lr is given twice, with 1 and with 3"});
  expect_refusal({"generate", "--greedy", "--temperature", "1"}, 2, {"--greedy", "--temperature"});
}

TEST(RunTest, EscapesHostileArguments) {
  expect_refusal({"\x1b[31mred\xff"}, 2, {"\\x1B[31mred\\xFF"});
  expect_refusal({std::string(5000, 'x')}, 2, {"xxx..."});
}

TEST(RunTest, ReportsAFullOutput) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  Capture err;
  cli::Context context{stdin, full, err.file()};
  const char* argv[] = {"witan", "--help"};
  EXPECT_EQ(cli::run(2, argv, context), 9);
  EXPECT_TRUE(contains(err.text(), "cannot write to the standard output")) << err.text();
  std::fclose(full);
}

struct Reported {
  ExitCode code;
  std::string text;
};

template <class Body>
Reported report(Body body) {
  Capture err;
  const ExitCode code = cli::report_errors(err.file(), [&]() -> ExitCode {
    body();
    return ExitCode::preempted;
  });
  return {code, err.text()};
}

TEST(ErrorsTest, AReturnedCodePrintsNothing) {
  const Reported reported = report([] {});
  EXPECT_EQ(reported.code, ExitCode::preempted);
  EXPECT_EQ(reported.text, "");
}

TEST(ErrorsTest, SuggestedCommandsUseTheCalledProgram) {
  Capture err;
  const auto body = []() -> ExitCode { throw DataError("try `witan data x` or `witan plan`, witan as it is"); };
  cli::report_errors(err.file(), body, "build/witan");
  EXPECT_EQ(err.text(), "witan: error: try `build/witan data x` or `build/witan plan`, witan as it is\n");
}

TEST(ErrorsTest, EachClassHasItsExitCode) {
  EXPECT_EQ(report([] { throw UsageError("x"); }).code, ExitCode::usage);
  EXPECT_EQ(report([] { throw ConfigError("x"); }).code, ExitCode::config);
  EXPECT_EQ(report([] { throw DataError("x"); }).code, ExitCode::data);
  EXPECT_EQ(report([] { throw CheckpointError("x"); }).code, ExitCode::checkpoint);
  EXPECT_EQ(report([] { throw DivergedError("x"); }).code, ExitCode::diverged);
  EXPECT_EQ(report([] { throw CommError("x"); }).code, ExitCode::rank_lost);
  EXPECT_EQ(report([] { throw OutOfMemoryError("x"); }).code, ExitCode::out_of_memory);
  EXPECT_EQ(report([] { throw DiskFullError("x"); }).code, ExitCode::disk_full);
  EXPECT_EQ(report([] { throw CorruptionError("x", ExitCode::checkpoint); }).code, ExitCode::checkpoint);
  EXPECT_EQ(report([] { throw std::bad_alloc(); }).code, ExitCode::out_of_memory);
}

TEST(ErrorsTest, UserErrorsAreOneLine) {
  EXPECT_EQ(report([] { throw DataError("my.txt: it is empty"); }).text, "witan: error: my.txt: it is empty\n");
  EXPECT_FALSE(contains(report([] { throw std::bad_alloc(); }).text, "bug"));
}

// A file name can contain sequences that set a terminal's title or hide text.
TEST(ErrorsTest, EscapeControlCharacters) {
  const auto text = [](const std::string& message) { return report([&] { throw DataError(message); }).text; };
  EXPECT_EQ(text("\x1b]0;title\a.txt: it is\r empty\b\x7f"),
            "witan: error: \\x1B]0;title\\x07.txt: it is\\x0D empty\\x08\\x7F\n");
  EXPECT_EQ(text("\xC2\x9B"
                 "31m \xFF"),
            "witan: error: \\xC2\\x9B31m \\xFF\n")
      << "U+009B outside UTF-8";
  EXPECT_EQ(text("Größe 专家:\n\tof two lines"), "witan: error: Größe 专家:\n\tof two lines\n");
  EXPECT_EQ(report([] { throw std::out_of_range("\x1b[2J"); }).text.find('\x1b'), std::string::npos);
}

TEST(ErrorsTest, FailedFileOperationsAreNotBugs) {
  const Reported refused = report([] { std::filesystem::create_directory("/proc/witan/x"); });
  EXPECT_EQ(refused.code, ExitCode::data);
  EXPECT_TRUE(contains(refused.text, "/proc/witan/x")) << refused.text;
  EXPECT_FALSE(contains(refused.text, "bug")) << refused.text;
  const Reported full = report([] {
    throw std::filesystem::filesystem_error("write", "x", std::make_error_code(std::errc::no_space_on_device));
  });
  EXPECT_EQ(full.code, ExitCode::disk_full);
}

TEST(ErrorsTest, AnUnwritableOutputIsNotABug) {
  const Reported full = report([] {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen("/dev/full", "w"), &std::fclose);
    std::setvbuf(out.get(), nullptr, _IONBF, 0);
    fmt::print(out.get(), "text");
  });
  EXPECT_EQ(full.code, ExitCode::disk_full) << full.text;
  EXPECT_FALSE(contains(full.text, "bug")) << full.text;
}

TEST(ErrorsTest, OtherExceptionsAreCalledBugs) {
  for (const Reported& reported :
       {report([] { throw std::out_of_range("index 7"); }), report([] { throw ShapeError("rmsnorm: index 7"); })}) {
    EXPECT_EQ(reported.code, ExitCode::internal);
    EXPECT_TRUE(contains(reported.text, "index 7")) << reported.text;
    EXPECT_TRUE(contains(reported.text, "this is a bug in Witan")) << reported.text;
  }
  EXPECT_EQ(report([] { throw 7; }).code, ExitCode::internal);
}

}  // namespace
}  // namespace witan::test
