// Commands of one process when a launcher starts several.
#include "witan/cli/command.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "cli/cli_support.h"
#include "support/program.h"
#include "witan/cli/help.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class CommandTest : public ::testing::Test {
 protected:
  CommandTest() { write_text(own_ / "my.txt", some_text(200)); }
  // The environment of one of two processes, or with other variables.
  int run(std::vector<std::string> words, std::vector<std::string> variables) {
    words.insert(words.begin(), WITAN_PROGRAM);
    return Program(words, log(), std::move(variables)).wait();
  }
  int run(std::vector<std::string> words, int rank) {
    return run(std::move(words), {"OMPI_COMM_WORLD_RANK=" + std::to_string(rank), "OMPI_COMM_WORLD_SIZE=2"});
  }
  fs::path log() const { return own_ / "log"; }
  std::string said() const { return read_text(log()); }

  TempFolder own_;
};

TEST_F(CommandTest, RunsOnceOnRankZero) {
  const fs::path tokenizer = own_ / "tokenizer.json";
  const std::vector<std::string> train = {"tokenizer", "train",    own_ / "my.txt", "--vocab-size",
                                          "300",       "--output", tokenizer};
  EXPECT_EQ(run(train, 1), 0);
  EXPECT_FALSE(fs::exists(tokenizer));
  EXPECT_EQ(said(), "witan tokenizer train: only rank 0 does this; process 1 of 2 has nothing to do\n");
  EXPECT_EQ(run(train, 0), 0) << said();
  EXPECT_TRUE(fs::exists(tokenizer));
  for (const char* command : {"data", "plan", "eval", "generate", "report", "doctor", "help"}) {
    EXPECT_EQ(run({command}, 1), 0) << said();
    EXPECT_EQ(said(), std::string("witan ") + command + ": only rank 0 does this; process 1 of 2 has nothing to do\n");
  }
}

TEST_F(CommandTest, RefusesToMeasureWithSeveralProcesses) {
  for (const char* bench : {"gemm", "attention", "moe-layer", "collectives", "exchange", "generate"}) {
    EXPECT_EQ(run({"bench", bench}, 0), 2) << said();
    EXPECT_TRUE(
        contains(said(), std::string("witan bench ") + bench +
                             " runs in a single process, but a launcher started 2: run it without the launcher"))
        << said();
    EXPECT_EQ(run({"bench", bench}, 1), 2) << bench;
    EXPECT_EQ(said(), "") << "rank 0 reports it for all";
  }
}

// Variables that do not identify a process do not prevent a command from running.
TEST_F(CommandTest, NeedsOnlyRankAndSizeFromTheEnvironment) {
  const std::vector<std::string> help = {"help", "report"};
  for (const std::vector<std::string>& variables : {std::vector<std::string>{"WORLD_SIZE=2"},
                                                    {"RANK=1"},
                                                    {"RANK=captain", "WORLD_SIZE=2"},
                                                    {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=10.0.0.7"},
                                                    {"RANK=1", "WORLD_SIZE=1"}}) {
    EXPECT_EQ(run(help, variables), 0) << said();
    EXPECT_TRUE(contains(said(), "usage: witan report")) << said();
  }
}

using Names = std::vector<std::string>;

// The names that the program declares when called as `witan name`.
Names declared(const std::string& name) {
  cli::Context context;
  CLI::App app("Witan", "witan");
  cli::add_what_runs(app, context, name);
  return cli::names_of_commands(app);
}

Names all_names() {
  cli::Context context;
  CLI::App app("Witan", "witan");
  cli::add_all(app, context);
  return cli::names_of_commands(app);
}

TEST(CommandsTest, OnlyTheCalledOneIsDeclared) {
  for (const std::string& name : all_names()) {
    if (name == "completions" || name == "man") continue;
    EXPECT_EQ(declared(name), Names{name});
  }
}

TEST(CommandsTest, AllAreDeclaredForListings) {
  const Names all = all_names();
  EXPECT_EQ(all.size(), 20u);
  for (const char* word : {"completions", "man", "help", "--help", "", "trian"}) EXPECT_EQ(declared(word), all) << word;
}

}  // namespace
}  // namespace witan::test
