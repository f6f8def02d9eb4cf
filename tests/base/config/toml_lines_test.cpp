#include "witan/base/config/toml_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(TomlLines, EachKeyHasTheLineItIsSetOn) {
  int64_t layers = 0, top = 0;
  std::vector<TableKeys> groups;
  std::string kind;
  Field tables{"optimizer_groups", &groups, "", "optimizer"};
  tables.columns = {Field{"kind", &kind}};
  const Fields fields = {Field{"num_layers", &layers, "", "model"}, Field{"topk", &top, "", "model"}, tables};
  EXPECT_THAT(lines_of_keys(fields, "# a comment\nnum_layers = 2\n\n[model]\ntopk = 1 # one\n", "t"),
              ElementsAre(Pair("num_layers", 2), Pair("topk", 5)));
  EXPECT_THAT(lines_of_keys(fields, "[optimizer]\n\n[[optimizer.groups]]\nkind = \"norms\"\n", "t"),
              ElementsAre(Pair("optimizer_groups", 3)));
  EXPECT_THAT(lines_of_keys(fields, "", "t"), ElementsAre());
  EXPECT_THROW(lines_of_keys(fields, "num_layers =", "t"), ConfigError);
}

}  // namespace
}  // namespace witan
