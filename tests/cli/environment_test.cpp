#include "witan/cli/environment.h"

#include <regex>
#include <set>

#include "cli/cli_support.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

Names names_in(const std::string& text, const std::regex& pattern) {
  Names names;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) names.insert((*at)[1]);
  return names;
}

Names all_variables() {
  Names names;
  for (const auto list : {cli::user_variables(), cli::supervisor_variables()}) names.insert(list.begin(), list.end());
  return names;
}

// The program's strings contain every variable that it reads: "WITAN_NAME".
TEST(Environment, ListsTheVariablesThatSourcesRead) {
  Names read;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(WITAN_SOURCE_DIR) / "witan")) {
    const fs::path& path = entry.path();
    if (path.filename() == "environment.cpp" || !(path.extension() == ".cpp" || path.extension() == ".h")) continue;
    read.merge(names_in(read_text(path), std::regex("\"(WITAN_[A-Z_]+)\"")));
  }
  EXPECT_EQ(read, all_variables());
}

TEST(Environment, DocumentedVariablesMatchTheManual) {
  const std::string manual = read_text(fs::path(WITAN_SOURCE_DIR) / "docs/cli.md");
  const auto ours = cli::user_variables();
  EXPECT_EQ(names_in(manual, std::regex("\\b(WITAN_[A-Z_]*[A-Z])\\b")), Names(ours.begin(), ours.end()));
}

TEST(Environment, WarnsOfUnknownVariables) {
  const char* const environment[] = {"HOME=/root",         "WITAN_COM_ENGINE=ucx",   "WITAN_COMM_ENGINE=ucx",
                                     "WITAN_LONG_TESTS=1", "WITAN_JOB_SECRETS=hush", nullptr};
  EXPECT_EQ(cli::environment_warnings(environment),
            (std::vector<std::string>{
                "warning: environment: nothing reads WITAN_COM_ENGINE (did you mean WITAN_COMM_ENGINE?)",
                "warning: environment: nothing reads WITAN_JOB_SECRETS (did you mean WITAN_JOB_SECRET?)"}));
  const char* const of_a_rank[] = {"WITAN_COM_ENGINE=ucx", "WITAN_RUN_CALL=run --", nullptr};
  EXPECT_TRUE(cli::environment_warnings(of_a_rank).empty()) << "`witan run` has already warned";
}

TEST(Environment, EveryCommandWarnsAndContinues) {
  ::setenv("WITAN_COMM_PEER", "0", 1);
  const Said said = witan({"--version"});
  ::unsetenv("WITAN_COMM_PEER");
  EXPECT_EQ(said.code, 0);
  EXPECT_EQ(said.err, "warning: environment: nothing reads WITAN_COMM_PEER (did you mean WITAN_COMM_PEERS?)\n");
}

}  // namespace
}  // namespace witan::test
