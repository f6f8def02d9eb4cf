// Every op that records a node must be gradient-checked by its recorded name; the test reads the sources.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace witan {
namespace {

namespace fs = std::filesystem;

// "recomputed" replays other ops, with the same bits (tests/autograd/recompute_test.cpp). "fp8_experts" joins others,
// and finite differences do not work across its rounding (tests/ops/fp8/fp8_experts_test.cpp).
const std::set<std::string> kExempt = {"recomputed", "fp8_experts"};

// The first groups of all matches.
std::vector<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> found;
  for (std::sregex_iterator i(text.begin(), text.end(), pattern), end; i != end; ++i) found.push_back((*i)[1]);
  return found;
}

std::vector<std::string> recorded_names(const std::string& text) {
  return matches(text, std::regex(R"(\brecord(?:_with_leaves)?\(\s*"([^"]*)\")"));
}
// Calls whose name is not a literal, which would hide an op from this test.
std::vector<std::string> hidden_names(const std::string& text) {
  return matches(text, std::regex(R"(\btape\w*(?:\.|->)record\(\s*([^"\s][^,]{0,40}))"));
}
std::vector<std::string> checked_names(const std::string& text) {
  // Ops that only move data between ranks have an adjoint test instead.
  auto names = matches(text, std::regex(R"(\bgradcheck\(\s*[^,"]{1,80},\s*"([^"]*)\")"));
  for (auto& name : matches(text, std::regex(R"(\bcheck_adjoint\(\s*"([^"]*)\")"))) names.push_back(name);
  return names;
}

std::map<std::string, std::string> sources(const std::string& folder) {
  std::map<std::string, std::string> texts;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(WITAN_SOURCE_DIR) / folder)) {
    if (entry.path().extension() != ".cpp") continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    texts[fs::relative(entry.path(), WITAN_SOURCE_DIR).string()] = text.str();
  }
  return texts;
}

TEST(Coverage, EveryRecordedOpHasAGradcheck) {
  std::set<std::string> checked = kExempt;
  for (const auto& [file, text] : sources("tests"))
    for (const std::string& name : checked_names(text)) checked.insert(name);
  int ops = 0;
  for (const auto& [file, text] : sources("witan")) {
    for (const std::string& name : recorded_names(text)) {
      ++ops;
      EXPECT_TRUE(checked.contains(name))
          << file << " records \"" << name << "\", but no test calls gradcheck(rank, \"" << name << "\", …): add one";
    }
    for (const std::string& name : hidden_names(text))
      ADD_FAILURE() << file << " records an op under a name that is no literal (" << name
                    << "): this test cannot see it";
  }
  EXPECT_GE(ops, 10) << "the sources were not found";
}

TEST(Coverage, ScanRecognisesCalls) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(recorded_names("return tape.record(\n    \"a b\", y, {x}, f); record_with_leaves(\"c\", ys)"),
            (Names{"a b", "c"}));
  EXPECT_EQ(recorded_names("Tape::record(const char* name); recorded(\"x\")"), Names{});
  EXPECT_EQ(hidden_names("tape.record(name, y, {x}, f); tape.record(\"a\", y)"), Names{"name"});
  EXPECT_EQ(checked_names("gradcheck(rank, \"a\", f); gradcheck(world.rank(0),\n  \"b\""), (Names{"a", "b"}));
  EXPECT_EQ(checked_names("// \"a\"\nregradcheck(rank, \"a\")"), Names{});
}

}  // namespace
}  // namespace witan
