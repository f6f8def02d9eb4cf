// Recipes by their names, from any folder, in a program that has them inside.
#include "witan/cli/args/recipes.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "cli/cli_support.h"
#include "support/program.h"
#include "witan/base/error.h"

namespace witan::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

const fs::path kTree = WITAN_SOURCE_DIR;

TEST(RecipesTest, AllFilesOfTheTreeArePartOfTheProgram) {
  size_t files = 0;
  for (const auto& file : fs::recursive_directory_iterator(kTree / "recipes")) {
    if (!file.is_regular_file()) continue;
    ++files;
    const std::string name = "recipes/" + fs::relative(file.path(), kTree / "recipes").string();
    const auto found = std::ranges::find(cli::recipes(), name, &cli::Recipe::name);
    ASSERT_NE(found, cli::recipes().end()) << name;
    EXPECT_EQ(found->text, read_text(file.path())) << name;
  }
  EXPECT_EQ(cli::recipes().size(), files);
  EXPECT_THAT(cli::recipe_names(".toml"), AllOf(Contains("recipes/default.toml"),
                                                Contains("recipes/presets/gpt2-124m.toml"), Each(EndsWith(".toml"))));
  EXPECT_THAT(cli::recipe_names(".args"), Contains("recipes/megatron/dense.args"));
}

TEST(RecipesTest, OneThatIsMissingIsRefusedWithASimilarOne) {
  expect_refusal({"config", "show", "--config", "recipes/reference/dens.toml"}, 3,
                 {"--config recipes/reference/dens.toml: there is no such file below this folder, and no such recipe",
                  "did you mean recipes/reference/dense.toml?"});
  expect_refusal({"plan", "@recipes/megatron/dens.args"}, 2,
                 {"@recipes/megatron/dens.args: there is no such file", "recipes/megatron/dense.args?"});
}

// A copy of the program alone, in a folder without recipes.
class CopiedProgram : public ::testing::Test {
 protected:
  CopiedProgram() {
    fs::create_directories(folder_ / "elsewhere");
    fs::copy_file(WITAN_PROGRAM, folder_ / "witan");
  }
  std::string said(const std::string& arguments) const {
    Program program({"/bin/sh", "-c", "cd '" + (folder_ / "elsewhere").string() + "' && ../witan " + arguments},
                    folder_ / "log");
    program.wait();
    return read_text(folder_ / "log");
  }

  TempFolder folder_;
};

TEST_F(CopiedProgram, HasTheRecipes) {
  EXPECT_THAT(said("config show --config recipes/reference/dense.toml --changed"),
              AllOf(HasSubstr("num_layers = 24"), HasSubstr("# recipes/reference/dense.toml:")));
  EXPECT_THAT(said("config show --no-megatron @recipes/megatron/dense.args --changed"), HasSubstr("num_layers = "));
  EXPECT_THAT(said("config diff recipes/default.toml recipes/reference/dense.toml"), HasSubstr("num_layers"));
}

TEST_F(CopiedProgram, AFileOfTheWorkingFolderComesFirst) {
  write_text(folder_ / "elsewhere/recipes/reference/dense.toml", "num_layers = 6\n");
  EXPECT_THAT(said("config show --config recipes/reference/dense.toml --changed"),
              AllOf(HasSubstr("num_layers = 6"), HasSubstr("# recipes/reference/dense.toml:1")));
}

}  // namespace
}  // namespace witan::test
