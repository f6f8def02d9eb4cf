// Which commands are declared to run one.
#include "witan/cli/commands.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "witan/cli/help.h"

namespace witan::test {
namespace {

using Names = std::vector<std::string>;

// What the program declares where `name` is its first word.
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

TEST(CommandsTest, OneIsDeclaredAloneUnderItsName) {
  for (const std::string& name : all_names()) {
    if (name == "completions" || name == "man") continue;
    EXPECT_EQ(declared(name), Names{name});
  }
}

TEST(CommandsTest, AllAreDeclaredForWhatShowsThem) {
  const Names all = all_names();
  EXPECT_EQ(all.size(), 20u);
  for (const char* word : {"completions", "man", "help", "--help", "", "trian"}) EXPECT_EQ(declared(word), all) << word;
}

}  // namespace
}  // namespace witan::test
