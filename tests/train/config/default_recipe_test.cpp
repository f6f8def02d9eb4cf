// recipes/default.toml is documentation: it says what the defaults are.
#include <gtest/gtest.h>

#include "witan/base/files/file.h"
#include "witan/train/config/config.h"

namespace witan {
namespace {

const fs::path kRecipe = fs::path(WITAN_SOURCE_DIR) / "recipes/default.toml";

TEST(DefaultRecipe, SaysWhatTheDefaultsAre) {
  RunConfig defaults;
  const std::string text = read_file(kRecipe), head = text.substr(0, text.find('['));
  EXPECT_EQ(text, head + write_toml(defaults.fields(), true))
      << "the comment at the head of " << kRecipe << " stays; what follows is the text on the right";
}

TEST(DefaultRecipe, IsReadAsTheDefaults) {
  RunConfig read, defaults;
  read_toml(read.fields(), kRecipe.string());
  EXPECT_EQ(write_toml(read.fields()), write_toml(defaults.fields()));
}

}  // namespace
}  // namespace witan
