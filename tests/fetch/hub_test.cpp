#include "witan/fetch/hub.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fetch/fetch_support.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/files/glob.h"
#include "witan/base/json.h"

namespace witan::fetch {
namespace {

using test::message_of;

class HubTest : public ::testing::Test {
 protected:
  HubTest() : options_(options_for(server_, "nowhere").hub) { server_.add(corpus()); }

  std::vector<HubFile> files(const std::string& folder = "") {
    Hub hub(options_);
    const Repository repository{RepositoryKind::dataset, "owner/corpus"};
    return hub.files(repository, hub.state(repository).commit, folder);
  }
  std::string refusal(const Repository& repository) {
    return message_of<DataError>([&] { Hub(options_).state(repository); });
  }
  void expect_pieces(const std::string& message, const std::vector<std::string>& pieces) {
    for (const std::string& piece : pieces)
      EXPECT_NE(message.find(piece), std::string::npos) << "no \"" << piece << "\" in: " << message;
  }

  test::HubServer server_;
  HubOptions options_;
};

TEST_F(HubTest, ListsFilesWithTheirDigests) {
  const auto all = files();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0].path, "README.md");
  EXPECT_EQ(all[0].digest.kind, DigestKind::git_blob);
  EXPECT_EQ(all[1].path, "data/a.jsonl");
  EXPECT_EQ(all[1].size, 100'001u);
  EXPECT_EQ(all[1].digest.kind, DigestKind::sha256);
  EXPECT_EQ(all[3].path, "data/deep er/ü%.jsonl");
  EXPECT_TRUE(all[4] == (HubFile{"empty.txt", 0, {DigestKind::git_blob, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}}));
}

TEST_F(HubTest, ReadsAllPages) {
  const auto all = files();
  for (const size_t size : {1, 2, 3, 7, 8}) {
    server_.set_page_size(size);
    EXPECT_TRUE(files() == all) << size;
  }
}

TEST_F(HubTest, ListsAFolder) {
  EXPECT_EQ(files("data").size(), 3u);
  EXPECT_EQ(files("data/deep er").size(), 1u);
  expect_pieces(message_of<DataError>([&] { files("no"); }), {"404", "no such file or folder"});
}

TEST_F(HubTest, ReadsTheSubsetsOfACard) {
  test::HubRepository repository = corpus();
  repository.card = nlohmann::json::parse(R"({"license": "odc-by", "configs": [
      {"config_name": "default", "data_files": [{"split": "train", "path": "data/*/*"}]},
      {"config_name": "sample-10BT", "data_files": [{"split": "train", "path": ["sample/10BT/*", "more/*"]}]},
      {"config_name": "text", "data_files": "a.txt"}, {"config_name": "sci", "data_dir": "sci"}, 7, {"x": 1}]})");
  server_.add(repository);
  const auto subsets = Hub(options_).state({RepositoryKind::dataset, "owner/corpus"}).subsets;
  ASSERT_EQ(subsets.size(), 4u);
  EXPECT_EQ(subsets[0].patterns, std::vector<std::string>{"data/*/*"});
  EXPECT_EQ(subsets[1].patterns, (std::vector<std::string>{"sample/10BT/*", "more/*"}));
  EXPECT_EQ(subsets[2].patterns, std::vector<std::string>{"a.txt"});
  EXPECT_EQ(subsets[3].patterns, std::vector<std::string>{"sci/**"});
}

TEST_F(HubTest, ErrorsSuggestAFix) {
  expect_pieces(refusal({RepositoryKind::dataset, "owner/none"}),
                {"dataset owner/none", "answers 401", "there is no such dataset, or it is private", "HF_TOKEN",
                 "https://huggingface.co/datasets/owner/none"});
  expect_pieces(refusal({RepositoryKind::model, "owner/corpus"}),
                {"model owner/corpus", "https://huggingface.co/owner"});
  expect_pieces(refusal({RepositoryKind::dataset, "owner/corpus", "v9"}), {"it has no revision \"v9\"", "--revision"});
  test::HubRepository gated = corpus();
  gated.token = "hf_right";
  server_.add(gated);
  expect_pieces(refusal({RepositoryKind::dataset, "owner/corpus"}),
                {"\"Access is restricted\"", "gated or private", "accept its terms", "set HF_TOKEN"});
  options_.token = "hf_wrong";
  const std::string message = refusal({RepositoryKind::dataset, "owner/corpus"});
  expect_pieces(message, {"403", "check that HF_TOKEN is valid"});
  EXPECT_EQ(message.find("hf_wrong"), std::string::npos);
  options_.token = "hf_right";
  EXPECT_EQ(files().size(), 5u);
  server_.set_fault([](const test::HubRequest&) { return test::HubFault{.status = 404}; });
  expect_pieces(refusal({RepositoryKind::dataset, "owner/corpus"}), {"a model is fetched with --model"});
  server_.set_fault([](const test::HubRequest&) { return test::HubFault{.status = 418}; });
  expect_pieces(refusal({RepositoryKind::dataset, "owner/corpus"}), {"418", "check HF_ENDPOINT"});
}

TEST_F(HubTest, ErrorsDoNotContainTheToken) {
  options_.token = "hf_secret";
  server_.set_fault([](const test::HubRequest&) {
    return test::HubFault{.status = 403, .headers = "X-Error-Message: hf_secret is not hf_secret enough\r\n"};
  });
  const std::string message = refusal({RepositoryKind::dataset, "owner/corpus"});
  expect_pieces(message, {"*** is not *** enough"});
  EXPECT_EQ(message.find("hf_secret"), std::string::npos);
}

TEST_F(HubTest, LimitsRetries) {
  std::atomic<int> left;
  std::vector<std::string> notes;
  options_.note = [&](const std::string& note) { notes.push_back(note); };
  for (const int status : {429, 500, 503}) {
    left = 3;
    notes.clear();
    server_.set_fault([&](const test::HubRequest&) -> std::optional<test::HubFault> {
      if (left-- <= 0) return std::nullopt;
      return test::HubFault{.status = status, .headers = "Retry-After: 0\r\n"};
    });
    EXPECT_EQ(files().size(), 5u);
    EXPECT_EQ(notes.size(), 3u);
    left = 1000;
    server_.forget_requests();
    expect_pieces(refusal({RepositoryKind::dataset, "owner/corpus"}), {std::to_string(status)});
    EXPECT_EQ(server_.requests().size(), 5u);  // the first, and four more
  }
  server_.set_fault([](const test::HubRequest&) { return test::HubFault{.cut_after = 3}; });
  expect_pieces(refusal({RepositoryKind::dataset, "owner/corpus"}), {"incomplete response", "HF_ENDPOINT"});
}

TEST_F(HubTest, RefusesHostileNames) {
  const std::pair<const char*, const char*> names[] = {
      {"../x", "lead out"},
      {"a/../../x", "lead out"},
      {"/etc/passwd", "absolute"},
      {"a//b", "lead out"},
      {"a/./b", "lead out"},
      {"", "empty or too long"},
      {"a/", "lead out"},
      {"..", "lead out"},
      {"a\nb", "control"},
      {"a\x7f", "control"},
      {".witan-fetch/manifest.jsonl", "own files"},
  };
  for (const auto& [name, why] : names) {
    test::HubRepository repository = corpus();
    repository.more_listed.push_back({{"type", "file"}, {"path", name}, {"size", 1}, {"oid", std::string(40, 'a')}});
    server_.add(repository);
    expect_pieces(message_of<DataError>([&] { files(); }), {why, "nothing of this repository is fetched"});
  }
  expect_pieces(message_of<DataError>([] { check_file_name("a\xff"); }), {"UTF-8"});
  expect_pieces(message_of<DataError>([] { check_file_name(std::string(256, 'a')); }), {"too long"});
}

TEST_F(HubTest, RefusesInvalidLists) {
  const std::pair<const char*, const char*> items[] = {
      {R"({"type": "file", "path": "x", "size": 1, "oid": "short"})", "is not the digest of a file"},
      {R"({"type": "file", "path": "x", "size": -1, "oid": "0123456789012345678901234567890123456789"})",
       "larger than a file can be"},
      {R"({"type": "file", "path": "x", "oid": "0123456789012345678901234567890123456789"})", "\"size\" is missing"},
      {R"({"type": "file", "path": "x", "size": 1, "oid": "0123456789012345678901234567890123456789", "xetHash": "f"})",
       "listed without the SHA-256 of its content"},
      {R"({"type": "file", "path": 7})", "\"path\" must be a string"},
      {R"({"type": "file", "path": "README.md", "size": 1, "oid": "0123456789012345678901234567890123456789"})",
       "README.md twice"},
      {R"(7)", "\"type\" is missing"},
  };
  for (const auto& [item, why] : items) {
    test::HubRepository repository = corpus();
    repository.more_listed.push_back(nlohmann::json::parse(item));
    server_.add(repository);
    expect_pieces(message_of<DataError>([&] { files(); }), {why});
  }
  server_.set_fault([](const test::HubRequest&) { return test::HubFault{.more_bytes = 1}; });
  EXPECT_THROW(files(), CorruptionError);
}

TEST_F(HubTest, RequestsFurtherPagesFromTheMirror) {
  server_.set_fault([](const test::HubRequest& request) -> std::optional<test::HubFault> {
    if (request.path.find("/tree/") == std::string::npos || !request.query.ends_with("true")) return std::nullopt;
    return test::HubFault{.headers = "Link: <https://huggingface.co" + request.path +
                                     "?recursive=true&cursor=0>; rel=\"next\"\r\n"};
  });
  expect_pieces(message_of<DataError>([&] { files(); }), {"README.md twice"});  // the second page came from the mirror
}

TEST(HubNames, ConsistOfOwnerAndRepository) {
  for (const char* name : {"gpt2", "Qwen/Qwen3-0.6B", "HuggingFaceFW/fineweb-edu", "a_b/c.d"})
    EXPECT_NO_THROW(check_repository({RepositoryKind::dataset, name})) << name;
  for (const char* name :
       {"", "a/b/c", "../b", "a/..", "a b", "https://huggingface.co/gpt2", "a/b?c", "/a", "a/", "-x"})
    EXPECT_THROW(check_repository({RepositoryKind::dataset, name}), UsageError) << name;
}

class HubEnvironment : public ::testing::Test {
 protected:
  ~HubEnvironment() override {
    ::unsetenv("HF_ENDPOINT");
    ::unsetenv("HF_TOKEN");
  }
  static HubOptions with(const char* endpoint, const char* token) {
    ::setenv("HF_ENDPOINT", endpoint, 1);
    ::setenv("HF_TOKEN", token, 1);
    return hub_options_of_environment();
  }
};

TEST_F(HubEnvironment, GivesEndpointAndToken) {
  EXPECT_EQ(with("", "").endpoint, "https://huggingface.co");
  EXPECT_EQ(with("https://mirror.example/hf//", "hf_x\n").endpoint, "https://mirror.example/hf");
  EXPECT_EQ(with("", "hf_x\n").token, "hf_x");
  EXPECT_EQ(with("http://127.0.0.1:8080", "hf_x").token, "hf_x");
  EXPECT_EQ(with("http://mirror.example", "").token, "");
  EXPECT_THROW(with("mirror.example", ""), UsageError);
  EXPECT_THROW(with("file:///x", ""), UsageError);
  EXPECT_THROW(with("", "hf_x\r\nCookie: y"), UsageError);
  const std::string message = message_of<UsageError>([] { with("http://mirror.example", "hf_x"); });
  EXPECT_NE(message.find("unset HF_TOKEN"), std::string::npos);
  EXPECT_EQ(message.find("hf_x"), std::string::npos);
}

std::string file_with(const std::string& members) {
  return R"([{"type": "file", "path": "a", "oid": ")" + std::string(40, 'a') + "\", " + members + "}]";
}

TEST(HubAnswers, ListFilesWithSizes) {
  const auto files = parse_files(file_with("\"size\": 7"), "page");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_TRUE(files[0] == (HubFile{"a", 7, {DigestKind::git_blob, std::string(40, 'a')}}));
  EXPECT_TRUE(parse_files(R"([{"type": "directory", "path": "../x"}])", "page").empty());
}

TEST(HubAnswers, RefuseSizesThatAreNotIntegers) {
  for (const char* size : {"1.5", "1e300", "\"7\"", "null", "[7]"})
    EXPECT_EQ(
        message_of<DataError>([&] { parse_files(file_with(std::string("\"size\": ") + size), "page"); }).substr(0, 40),
        "page: a: \"size\" must be an integer, but ")
        << size;
}

TEST(HubAnswers, NameTheNextPage) {
  HttpResult result;
  EXPECT_EQ(next_page(result), "");
  result.take_header("Link: <https://a/b?cursor=x>; rel=\"next\"");
  EXPECT_EQ(next_page(result), "https://a/b?cursor=x");
  result.take_header("HTTP/1.1 200 OK");
  result.take_header("Link: <https://a/first>; rel=first, <https://a/2>; rel=next");
  EXPECT_EQ(next_page(result), "https://a/2");
}

// Names as in huggingface_hub (tests/golden/fetch/make_names.py).
Json golden_names() {
  const fs::path path = fs::path(WITAN_SOURCE_DIR) / "tests/golden/fetch/names.json";
  return parse_json(read_file(path), path.string());
}

TEST(FetchNames, UrlsMatchHuggingFaceHub) {
  const Json names = golden_names();
  for (const Json& place : names["urls"]) {
    const auto kind = place["kind"] == "dataset" ? RepositoryKind::dataset : RepositoryKind::model;
    EXPECT_EQ(file_url({}, {kind, place["name"]}, place["revision"], place["path"]), place["url"].get<std::string>());
  }
}

TEST(FetchNames, PatternsMatchHuggingFaceHub) {
  const Json names = golden_names();
  for (const Json& item : names["chosen"]) {
    std::vector<std::string> chosen;
    for (const std::string path : names["files"])
      if (matches_any({item["pattern"].get<std::string>()}, path)) chosen.push_back(path);
    EXPECT_EQ(chosen, item["chosen"].get<std::vector<std::string>>()) << item["pattern"];
  }
}

}  // namespace
}  // namespace witan::fetch
