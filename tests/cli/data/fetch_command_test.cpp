// witan data fetch with a local hub server.
#include <chrono>
#include <random>
#include <thread>

#include "cli/cli_support.h"
#include "support/hub_server.h"
#include "support/long_form.h"
#include "support/program.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class FetchCommandTest : public ::testing::Test {
 protected:
  FetchCommandTest() {
    ::setenv("no_proxy", "127.0.0.1", 1);
    ::setenv("HF_ENDPOINT", server_.endpoint().c_str(), 1);
    ::unsetenv("HF_TOKEN");
    HubRepository edu;
    edu.name = "HuggingFaceFW/fineweb-edu";
    edu.card = nlohmann::json::parse(
        R"({"configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*/*"}]},
                        {"config_name": "sample-10BT", "data_files": [{"split": "train", "path": "sample/10BT/*"}]}]})");
    edu.files = {{"README.md", "card"},
                 {"data/CC/0.parquet", random_bytes(3'000)},
                 {"sample/10BT/000.parquet", random_bytes(2'000, 2)},
                 {"sample/10BT/001.parquet", random_bytes(500, 3)}};
    server_.add(edu);
  }
  ~FetchCommandTest() override {
    ::unsetenv("HF_ENDPOINT");
    ::unsetenv("HF_TOKEN");
  }
  std::string at(const std::string& name) const { return folder_ / name; }

  TempFolder folder_;
  HubServer server_;
};

TEST_F(FetchCommandTest, FetchesAPresetOnce) {
  const std::vector<std::string> command = {"data", "fetch", "--preset", "fineweb-edu-10bt", "--to", at("edu")};
  const Said said = witan(command);
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "folder        " + at("edu") + "\n")) << said.out;
  EXPECT_TRUE(contains(said.out, "fetched       2 files, 2.44 KiB\n")) << said.out;
  EXPECT_EQ(read_text(at("edu/sample/10BT/000.parquet")), random_bytes(2'000, 2));
  EXPECT_EQ(read_text(at("edu/sample/10BT/001.parquet")), random_bytes(500, 3));
  EXPECT_FALSE(fs::exists(at("edu/README.md")));
  server_.forget_requests();
  const Said again = witan(command);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(contains(again.out, "fetched       0 files")) << again.out;
  EXPECT_TRUE(contains(again.out, "there before  2 files")) << again.out;
  EXPECT_EQ(server_.content_requests(), 0);
}

TEST_F(FetchCommandTest, ListsWithoutFetching) {
  const Said said = witan({"data", "fetch", "HuggingFaceFW/fineweb-edu", "--include", "*.parquet", "--exclude",
                           "data/*", "--to", at("edu"), "--list"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, hex_digest(EVP_sha256(), random_bytes(2'000, 2)) + "             2000  sample/"))
      << said.out;
  EXPECT_FALSE(contains(said.out, "data/CC"));
  EXPECT_TRUE(contains(said.err, "2 files, 2.44 KiB, at commit 0123456789abcdef")) << said.err;
  EXPECT_FALSE(fs::exists(at("edu")));
  EXPECT_EQ(server_.content_requests(), 0);
}

TEST_F(FetchCommandTest, ExplainsHowToUseAModel) {
  HubRepository model;
  model.kind = "model";
  model.name = "Qwen/Qwen3-0.6B";
  model.files = {{"config.json", "{}"}, {"model.safetensors", random_bytes(3'000)}, {"flax_model.msgpack", "x"}};
  server_.add(model);
  const Said said = witan({"data", "fetch", "--model", "Qwen/Qwen3-0.6B", "--to", at("qwen")});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "left out what Witan does not read of a model: 1 file")) << said.err;
  EXPECT_TRUE(contains(said.err, "witan import " + at("qwen"))) << said.err;
}

TEST_F(FetchCommandTest, ErrorsNameTheProblem) {
  expect_refusal({"data", "fetch"}, 2, {"give the name of a dataset", "--preset"});
  expect_refusal({"data", "fetch", "a/b", "--preset", "dclm-baseline"}, 2, {"--preset"});
  expect_refusal({"data", "fetch", "--preset", "dclm"}, 2, {"there is no preset \"dclm\"", "fineweb-edu-10bt"});
  expect_refusal({"data", "fetch", "../b"}, 2, {"is not the name of a dataset"});
  expect_refusal({"data", "fetch", "a/b", "--connections", "0"}, 2, {"--connections"});
  expect_refusal({"data", "fetch", "a/b", "--to", at("x")}, 4, {"answers 401", "HF_TOKEN"});
  expect_refusal({"data", "fetch", "HuggingFaceFW/fineweb-edu", "--subset", "sample-1BT", "--to", at("x")}, 2,
                 {"did you mean sample-10BT?"});
  expect_refusal({"data", "fetch", "HuggingFaceFW/fineweb-edu", "--revision", "v9", "--to", at("x")}, 4,
                 {"it has no revision \"v9\""});
}

// These are refused before any request to the hub.
TEST_F(FetchCommandTest, RefusalsNameContradictions) {
  expect_refusal({"data", "fetch", "fineweb-edu"}, 2,
                 {"fineweb-edu has no owner: give OWNER/NAME", "did you mean --preset fineweb-edu?"});
  expect_refusal({"data", "fetch", "--model", "gpt2"}, 2,
                 {"gpt2 has no owner: give OWNER/NAME, as on the model's page"});
  expect_refusal({"data", "fetch", "--preset", "dclm-baseline", "a/b"}, 2,
                 {"--preset dclm-baseline names a repository, and so does the argument a/b", "leave one of them out"});
  expect_refusal({"data", "fetch", "--preset", "dclm-baseline", "--model"}, 2,
                 {"--preset", "--model asks for a model"});
  expect_refusal({"data", "fetch", "--model", "a/b", "--subset", "x"}, 2,
                 {"--subset x", "--model", "--include PATTERN"});
  expect_refusal({"data", "fetch", "--preset", "fineweb-edu-10bt", "--subset", "default"}, 2,
                 {"--preset fineweb-edu-10bt is the subset sample-10BT, and --subset is default",
                  "witan data fetch HuggingFaceFW/fineweb-edu --subset default"});
  expect_refusal({"data", "fetch", "--preset", "dclm-baseline", "--include", "*"}, 2,
                 {"--preset dclm-baseline has its own patterns of files, and --include gives others"});
  expect_refusal({"data", "fetch", "a/b", "--list", "--verify"}, 2, {"--list only lists, and --verify"});
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(FetchCommandTest, NeverShowsTheToken) {
  ::setenv("HF_TOKEN", "hf_do_not_tell", 1);
  const Said said = witan({"data", "fetch", "HuggingFaceFW/fineweb-edu", "--to", at("edu")});
  EXPECT_EQ(said.code, 0) << said.err;
  const Said refused = witan({"data", "fetch", "a/b", "--to", at("x")});
  EXPECT_EQ(refused.code, 4);
  EXPECT_FALSE(contains(said.out + said.err + refused.out + refused.err, "hf_do_not_tell"));
  int64_t sent = 0;
  for (const HubRequest& request : server_.requests()) {
    EXPECT_EQ(request.headers.count("authorization"), request.content ? 0u : 1u) << request.path;
    sent += request.content ? 1 : 0;
  }
  EXPECT_EQ(sent, 2);
}

// Killed repeatedly at arbitrary points, it continues to identical files; recorded parts are not fetched again.
TEST_F(FetchCommandTest, ContinuesAfterEveryKill) {
  HubRepository corpus;
  corpus.name = "owner/corpus";
  for (int i = 0; i < 4; ++i)
    corpus.files["data/" + std::to_string(i) + ".jsonl"] =
        random_bytes(3'000'000 + 700'000 * static_cast<size_t>(i), 10 + i);
  for (int i = 0; i < 20; ++i) corpus.files["small/" + std::to_string(i)] = random_bytes(10, 100 + i);
  server_.add(corpus);
  server_.set_fault([](const HubRequest& request) -> std::optional<HubFault> {
    if (!request.content) return std::nullopt;
    return HubFault{.bytes_per_second = 1.2e7};
  });
  const std::vector<std::string> command = {WITAN_PROGRAM, "data",       "fetch",         "owner/corpus",
                                            "--to",        at("corpus"), "--connections", "3"};
  const auto check = [&] {
    for (const auto& [path, content] : corpus.files) EXPECT_TRUE(read_text(at("corpus/" + path)) == content) << path;
  };
  // Sanitizers slow down the program, so it is killed later; otherwise it would never get past its start.
  const auto before_start = std::chrono::steady_clock::now();
  ASSERT_EQ(Program({WITAN_PROGRAM, "--version"}, at("log")).wait(), 0);
  const std::chrono::duration<double> start = std::chrono::steady_clock::now() - before_start;
  std::uniform_real_distribution<double> life(0.01, 0.6 + 3 * start.count());
  std::mt19937 random(18);
  const int64_t wanted = testing::steps_of(20, 200);
  int64_t kills = 0, whole = 0, continued = 0;
  while (kills < wanted) {
    Program fetching(command, at("log"));
    if (!fetching.ends_within(life(random))) fetching.send(SIGKILL);
    const int ended = fetching.wait();
    if (ended == -SIGKILL) {
      ++kills;
      continue;
    }
    ASSERT_EQ(ended, 0) << read_text(at("log"));
    ++whole;
    check();
    fs::remove_all(at("corpus"));
  }
  Program fetching(command, at("log"));
  ASSERT_TRUE(fetching.ends_within(60));
  ASSERT_EQ(fetching.wait(), 0) << read_text(at("log"));
  check();
  for (const HubRequest& request : server_.requests())
    continued += request.content && request.headers.count("range") ? 1 : 0;  // files are smaller than a segment
  EXPECT_GT(continued, 0);
  std::printf("%ld kills, %ld times whole, %ld requests that continued a part\n", static_cast<long>(kills),
              static_cast<long>(whole + 1), static_cast<long>(continued));
  server_.forget_requests();
  Program again(command, at("log"));
  EXPECT_EQ(again.wait(), 0);
  EXPECT_EQ(server_.content_requests(), 0);
}

}  // namespace
}  // namespace witan::test
