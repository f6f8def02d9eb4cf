// Recipes by their names: from any folder, in a source tree and where the program was installed.
#include "witan/cli/args/recipes.h"

#include <gmock/gmock.h>

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

const fs::path kTree = WITAN_SOURCE_DIR;

TEST(RecipesTest, ThoseOfTheTreeAreFoundFromAnyFolder) {
  EXPECT_EQ(fs::canonical(cli::recipes_folder()), fs::canonical(kTree / "recipes"));
  EXPECT_TRUE(fs::equivalent(cli::find_recipe("recipes/reference/dense.toml", "--config "),
                             kTree / "recipes/reference/dense.toml"));
  EXPECT_THAT(cli::recipe_names(".toml"), AllOf(Contains("recipes/default.toml"),
                                                Contains("recipes/presets/gpt2-124m.toml"), Each(EndsWith(".toml"))));
  EXPECT_THAT(cli::recipe_names(".args"), Contains("recipes/megatron/dense.args"));
  EXPECT_EQ(cli::find_recipe("mine.toml", "--config "), "mine.toml") << "what is no recipe is a path";
  const std::string own = (kTree / "recipes/default.toml").string();
  EXPECT_EQ(cli::find_recipe(own, "--config "), own);
}

TEST(RecipesTest, OneThatIsMissingIsRefusedWithThePlaceOfTheOthers) {
  const std::string where = "among the recipes of this program, in " + cli::recipes_folder().string();
  expect_refusal({"config", "show", "--config", "recipes/reference/dens.toml"}, 3,
                 {"--config recipes/reference/dens.toml: there is no such file", where,
                  "did you mean recipes/reference/dense.toml?"});
  expect_refusal({"plan", "@recipes/megatron/dens.args"}, 2,
                 {"@recipes/megatron/dens.args: there is no such file", where, "recipes/megatron/dense.args?"});
}

// What `cmake --install` makes: PREFIX/bin/witan and PREFIX/share/witan/recipes.
class InstalledRecipes : public ::testing::Test {
 protected:
  InstalledRecipes() {
    fs::create_directories(folder_ / "prefix/bin");
    fs::copy_file(WITAN_PROGRAM, folder_ / "prefix/bin/witan");
    write_text(folder_ / "prefix/share/witan/recipes/default.toml", "num_layers = 3\n");
    write_text(folder_ / "prefix/share/witan/recipes/reference/dense.toml", "num_layers = 5\n");
    write_text(folder_ / "prefix/share/witan/recipes/megatron/dense.args", "--num-layers 7 --hidden-size 64");
    fs::create_directories(folder_ / "elsewhere");
  }
  // What the installed program says in another folder.
  std::string said(const std::string& arguments) const {
    Program program(
        {"/bin/sh", "-c", "cd '" + (folder_ / "elsewhere").string() + "' && ../prefix/bin/witan " + arguments},
        folder_ / "log");
    program.wait();
    return read_text(folder_ / "log");
  }

  TempFolder folder_;
};

TEST_F(InstalledRecipes, AreFoundInTheShareFolder) {
  const std::string at = (fs::canonical(folder_.path()) / "prefix/share/witan/recipes").string();
  EXPECT_THAT(said("config show --config recipes/reference/dense.toml --changed"),
              AllOf(HasSubstr("num_layers = 5"), HasSubstr(at + "/reference/dense.toml:1")));
  EXPECT_THAT(said("config show --no-megatron @recipes/megatron/dense.args --changed"), HasSubstr("num_layers = 7"));
  EXPECT_THAT(said("config diff recipes/default.toml recipes/reference/dense.toml"), HasSubstr("num_layers"));
  EXPECT_THAT(said("config show --config recipes/none.toml"), HasSubstr("in " + at));
}

TEST_F(InstalledRecipes, AFileOfTheWorkingFolderComesFirst) {
  write_text(folder_ / "elsewhere/recipes/reference/dense.toml", "num_layers = 6\n");
  EXPECT_THAT(said("config show --config recipes/reference/dense.toml --changed"),
              AllOf(HasSubstr("num_layers = 6"), HasSubstr("# recipes/reference/dense.toml:1")));
}

}  // namespace
}  // namespace witan::test
