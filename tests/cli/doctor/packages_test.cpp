#include "witan/cli/doctor/packages.h"

#include "cli/cli_support.h"

namespace witan::test {
namespace {

TEST(PackagesTest, NamesWhatIsMissing) {
  const TempFolder root;
  for (const char* file : {"perl-doc.list", "libgtest-dev:amd64.list", "clang-tidy.md5sums"})
    write_text(root / (std::string("var/lib/dpkg/info/") + file), "");
  const auto sets = cli::read_packages(root.path());
  ASSERT_EQ(sets.size(), 4u);
  EXPECT_EQ(sets[0].purpose, "the default text");
  EXPECT_TRUE(sets[0].missing.empty());
  EXPECT_EQ(sets[1].missing, std::vector<std::string>{"libgmock-dev"});
  EXPECT_EQ(sets[3].missing, (std::vector<std::string>{"clang-format", "clang-tidy", "shellcheck"}));
}

TEST(PackagesTest, WithoutDpkgNothingIsSaid) {
  EXPECT_TRUE(cli::read_packages(TempFolder().path()).empty());
}

}  // namespace
}  // namespace witan::test
