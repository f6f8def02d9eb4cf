// witan runs compare.
#include <nlohmann/json.hpp>

#include "cli/runs/runs_support.h"

namespace witan::test {
namespace {

using CompareTest = MadeUpRuns;

TEST_F(CompareTest, ShowsDifferentKeysAndLosses) {
  make("base", 100, "micro_batch_size = 2\n[optimizer]\nlr = 1e-3\n");
  make("tuned", 50, "micro_batch_size = 2\n[optimizer]\nlr = 2e-3\n", "", 3);
  const Said said = runs({"compare", "base", "tuned"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "  lr          0.001    0.002")) << said.out;
  EXPECT_FALSE(contains(said.out, "micro_batch_size"));
  EXPECT_TRUE(contains(said.out, "3.0000 at step 100")) << said.out;
  EXPECT_TRUE(contains(said.out, "2.5000 at step 50")) << said.out;
  EXPECT_TRUE(contains(said.out, "training loss, smoothed\n")) << said.out;
  EXPECT_TRUE(contains(said.out, "a: base")) << said.out;
}

TEST_F(CompareTest, JsonHasTheTables) {
  make("base", 100, "[optimizer]\nlr = 2e-3\n");
  make("tuned", 5, "", "");
  const auto json = nlohmann::json::parse(runs({"compare", "base", "tuned", "--json"}).out);
  EXPECT_EQ(json["keys"].size(), 1u) << json;
  EXPECT_EQ(json["keys"]["lr"][0], 0.002);
  EXPECT_EQ(json["runs"][0]["best_loss"]["step"], 100);
  EXPECT_EQ(json["runs"][0]["last_validation_loss"]["loss"], 4.5);
  EXPECT_TRUE(json["runs"][1]["best_validation_loss"].is_null());
}

TEST_F(CompareTest, PageHasACurveForEachRun) {
  for (const char* name : {"a", "b", "c"}) make(name, 30);
  const std::string page = folder_ / "comparison.html";
  const Said said = runs({"compare", "a", "b", "c", "--report", page});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "no key of their configurations differs"));
  EXPECT_TRUE(contains(read_text(page), "<h1>a · b · c</h1>"));
  EXPECT_TRUE(contains(read_text(page), R"("name":"c validation")"));
}

TEST_F(CompareTest, RefusesIncomparableRuns) {
  make("a", 3);
  make("b", 3);
  const std::string folder = runs_.string();
  expect_refusal({"runs", "compare", "a", "--runs-folder", folder}, 2, {"takes 2 to 8 runs, and was given 1"});
  expect_refusal({"runs", "compare", "a", "a", "--runs-folder", folder}, 2, {"the run a is named twice"});
  expect_refusal({"runs", "compare", "a", "bb", "--runs-folder", folder}, 2, {"no run bb", "did you mean b?"});
  expect_refusal({"runs", "compare", "a", "../a", "--runs-folder", folder}, 2, {"no run ../a"});
}

// One of the runs has a configuration of another version of the program.
TEST_F(CompareTest, ComparesDespiteAnUnreadableConfiguration) {
  make("a", 3);
  make("b", 3, "no_such_key = 1\n");
  const Said said = runs({"compare", "a", "b"});
  EXPECT_EQ(said.code, 0);
  EXPECT_TRUE(contains(said.err, "no key no_such_key")) << said.err;
  EXPECT_TRUE(contains(said.out, "last loss")) << said.out;
}

}  // namespace
}  // namespace witan::test
