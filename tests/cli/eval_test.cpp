// witan eval of runs that were trained on pairs of answers (other runs: train/trained_run_test.cpp).
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/small_runs.h"

namespace witan::cli {
namespace {

using test::contains;
using test::Said;
using test::write_text;

class EvalOfPairs : public test::SmallRuns {
 protected:
  EvalOfPairs() {
    std::string pairs;
    for (int i = 0; i < 40; ++i) {
      const std::string good = i % 2 == 1 ? "odd" : "even", bad = i % 2 == 1 ? "even" : "odd";
      const auto message = [](const std::string& role, const std::string& content) {
        return nlohmann::json::array({{{"role", role}, {"content", content}}});
      };
      pairs += nlohmann::json{{"prompt", message("user", std::to_string(i))},
                              {"chosen", message("assistant", good)},
                              {"rejected", message("assistant", bad)}}
                   .dump() +
               "\n";
    }
    write_text(folder_ / "pairs.jsonl", pairs);
    write_text(folder_ / "chat.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    train_small("base", {});
  }

  void prefer(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> args =
        sft_args(name, "pairs.jsonl",
                 {"--init-from", "base", "--preferences", "--objective", "preference", "--seq-length", "64"});
    args.insert(args.end(), {"--lr", "1e-2", "--eval-iters", "2"});
    args.insert(args.end(), more.begin(), more.end());
    done(args);
  }
  nlohmann::json evaluated(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {"eval", "--run", name, "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return nlohmann::json::parse(done(args).out);
  }
  // The last evaluation of training.
  nlohmann::json trained(const std::string& name) const {
    nlohmann::json last;
    std::istringstream lines(file("runs/" + name + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (auto event = nlohmann::json::parse(line); event["kind"] == "eval") last = event;
    return last;
  }
};

constexpr const char* kFigures[] = {"reward_accuracy", "reward_margin", "reward_chosen", "reward_rejected",
                                    "chosen_loss"};

// The reference is the start, another model, the model below adapters, or none.
TEST_F(EvalOfPairs, GivesTheFiguresOfTraining) {
  train_small("other", {"--seed", "7"});
  for (const auto& [name, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"start", {}},
           {"compared", {"--reference", "other"}},
           {"adapters", {"--lora-rank", "2"}},
           {"codes", {"--lora-rank", "2", "--frozen-format", "mxfp4"}},
           {"free", {"--dpo-reference-free", "true"}}}) {
    SCOPED_TRACE(name);
    prefer(name, more);
    const nlohmann::json found = evaluated(name), expected = trained(name);
    EXPECT_EQ(found["step"], 2);
    EXPECT_GT(found["pairs"].get<double>(), 0);
    EXPECT_FALSE(found.contains("perplexity"));
    EXPECT_NEAR(found["loss"].get<double>(), expected["loss"].get<double>(), 1e-9);
    for (const char* figure : kFigures) {
      ASSERT_TRUE(expected["figures"].contains(figure)) << expected.dump();
      EXPECT_NEAR(found[figure].get<double>(), expected["figures"][figure].get<double>(), 1e-6) << figure;
    }
    EXPECT_NE(found["reward_margin"], 0.0) << "the reference has other weights";
  }
}

TEST_F(EvalOfPairs, ReadsGivenPairsAndConversations) {
  prefer("start", {});
  const nlohmann::json pairs = evaluated("start", {"--data", folder_ / "pairs.jsonl"});
  EXPECT_EQ(pairs["pairs"], 40);
  const Said table = done({"eval", "--run", "start", "--data", folder_ / "pairs.jsonl"});
  EXPECT_TRUE(contains(table.out, "pairs.jsonl: 40\n")) << table.out;
  EXPECT_TRUE(contains(table.out, "\nreward accuracy ")) << table.out;
  write_chats();
  const nlohmann::json chats = evaluated("start", {"--conversations", "--data", folder_ / "chats.jsonl"});
  EXPECT_GT(chats["bits_per_byte"].get<double>(), 0);
  EXPECT_FALSE(chats.contains("reward_accuracy"));
  const Said refused = run({"eval", "--run", "base", "--conversations", "--data", folder_ / "chats.jsonl"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.err, "--conversations is for runs that were trained on pairs")) << refused.err;
  // A reference that is lost is named.
  fs::remove_all(folder_ / "runs/start/reference");
  const Said lost = run({"eval", "--run", "start"});
  EXPECT_NE(lost.code, 0);
  EXPECT_TRUE(contains(lost.err, "there are no weights of a reference")) << lost.err;
}

}  // namespace
}  // namespace witan::cli
