// witan watch: access control and the command itself.
#include <gmock/gmock.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "cli/runs/runs_support.h"
#include "serve/http_client.h"
#include "support/program.h"
#include "witan/base/error.h"
#include "witan/cli/watch/dashboard.h"

namespace witan::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class WatchServiceTest : public MadeUpRuns {
 protected:
  void SetUp() override {
    make("a", 3, "", "");
    dashboard_.emplace(std::vector<std::filesystem::path>{runs_ / "a"});
    service_.emplace(*dashboard_, "secret");
  }
  serve::HttpResponse ask(serve::HttpRequest request) {
    if (request.method.empty()) request.method = "GET";
    return service_->answer(request);
  }
  int status(const std::string& query, const std::string& host = "127.0.0.1:8030", const std::string& origin = "") {
    return ask({.path = "/update", .query = query, .host = host, .origin = origin}).status;
  }

  std::optional<cli::Dashboard> dashboard_;
  std::optional<cli::WatchService> service_;
};

TEST_F(WatchServiceTest, TheTokenGrantsAccess) {
  EXPECT_EQ(status("token=secret"), 200);
  EXPECT_EQ(status("known=1&token=secret"), 200);
  for (const char* query : {"", "token=", "token", "token=secre", "token=secret1", "token=SECRET", "known=secret",
                            "xtoken=secret", "token=wrong&token=secret", "token=secret%00", "&&&=&token", "secret"})
    EXPECT_EQ(status(query), 403) << query;
}

// A page of another site lets its own host name resolve to this machine.
TEST_F(WatchServiceTest, RefusesOtherHostNames) {
  for (const char* host : {"127.0.0.1:8030", "127.0.0.1", "localhost:8030", "localhost", "[::1]:8030", "[::1]"})
    EXPECT_EQ(status("token=secret", host), 200) << host;
  for (const char* host : {"", "evil.example", "evil.example:8030", "127.0.0.1.evil.example:8030", "localhost.evil:1",
                           "evil.example:127.0.0.1", "127.0.0.1:1:2", "[::1].evil", "LOCALHOST@evil", "0.0.0.0:8030"})
    EXPECT_EQ(status("token=secret", host), 403) << host;
}

TEST_F(WatchServiceTest, RefusesScriptsOfOtherSites) {
  EXPECT_EQ(status("token=secret", "localhost:8030", "http://localhost:8030"), 200);
  for (const char* origin : {"null", "http://evil.example", "https://localhost:8030", "http://localhost:3000",
                             "http://127.0.0.1:8030", "http://localhost:8030.evil.example"})
    EXPECT_EQ(status("token=secret", "localhost:8030", origin), 403) << origin;
}

TEST_F(WatchServiceTest, AllowsNoChanges) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get", "head", "PATCH"}) {
    const auto answer = ask({.method = method, .path = "/", .query = "token=secret", .host = "localhost"});
    EXPECT_EQ(answer.status, 405) << method;
    EXPECT_EQ(answer.allow, "GET, HEAD");
    EXPECT_EQ(answer.body, cat("/ takes GET and HEAD, not ", method, "\n"));
  }
  for (const char* path : {"/metrics.jsonl", "/../a/config.toml", "//", "/update/", "", "/%2e%2e/"})
    EXPECT_EQ(ask({.path = path, .query = "token=secret", .host = "localhost"}).status, 404) << path;
  EXPECT_EQ(ask({.path = "/nowhere", .query = "", .host = "localhost"}).status, 403) << "not even existing paths";
}

TEST_F(WatchServiceTest, HeadIsCheckedLikeGet) {
  const serve::HttpRequest request{.method = "HEAD", .path = "/update", .query = "token=secret", .host = "localhost"};
  const serve::HttpResponse head = ask(request);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, ask({.path = "/update", .query = "token=secret", .host = "localhost"}).body)
      << "the server omits the body";
  serve::HttpRequest other = request;
  other.query = "token=wrong";
  EXPECT_EQ(ask(other).status, 403);
  other = request;
  other.host = "evil.example";
  EXPECT_EQ(ask(other).status, 403);
}

TEST_F(WatchServiceTest, CompressesLargeAnswersIfAccepted) {
  make("long", 100);
  cli::Dashboard dashboard(std::vector<std::filesystem::path>{runs_ / "long"});
  cli::WatchService service(dashboard, "secret");
  const auto ask_for = [&](const char* path, const char* known, const char* coding) {
    return service.answer({.method = "GET",
                           .path = path,
                           .query = cat("token=secret", known),
                           .host = "localhost",
                           .accept_encoding = coding});
  };
  const auto coding_of = [](const serve::HttpResponse& response) {
    for (const auto& [name, value] : response.headers)
      if (name == "Content-Encoding") return value;
    return std::string();
  };
  for (const char* path : {"/", "/update"}) {
    const serve::HttpResponse plain = ask_for(path, "", "br"), small = ask_for(path, "", "gzip, br");
    EXPECT_EQ(coding_of(plain), "");
    EXPECT_EQ(coding_of(small), "gzip");
    EXPECT_LT(small.body.size(), plain.body.size() / 2);
    EXPECT_EQ(gunzip(small.body), plain.body);
    EXPECT_EQ(small.headers.size(), plain.headers.size() + 1) << "with all others";
  }
  EXPECT_EQ(coding_of(ask_for("/update", "&known=1", "gzip")), "") << "no changes make a short answer";
}

TEST_F(WatchServiceTest, AnInvalidVersionGetsEverything) {
  const auto update = [&](const std::string& known) {
    return json::parse(ask({.path = "/update", .query = "token=secret&known=" + known, .host = "localhost"}).body);
  };
  const int64_t version = update("-1")["version"];
  EXPECT_FALSE(update(std::to_string(version)).contains("data"));
  for (const char* known :
       {"", "x", "1x", "99999999999999999999999", "-5", "%31", "0", "2", "9223372036854775807", "-9223372036854775808"})
    EXPECT_TRUE(update(known).contains("data")) << known;
}

// The program until it is stopped.
class Watching {
 public:
  Watching(const std::filesystem::path& runs, const std::filesystem::path& log, std::vector<std::string> more)
      : log_(log), program_(words(runs, std::move(more)), log) {
    EXPECT_TRUE(program_.reaches([&] { return said().find(" (Ctrl-C stops)") != std::string::npos; }, 60)) << said();
    const std::string before = "listening at http://127.0.0.1:", between = "/?token=";
    const size_t begin = said().find(before) + before.size(), middle = said().find(between);
    port_ = std::stoi(said().substr(begin));
    token_ = said().substr(middle + between.size(), 32);
  }
  int port() const { return port_; }
  std::string token() const { return token_; }
  std::string said() const { return read_text(log_); }
  HttpAnswer get(const std::string& path, const std::string& headers) const {
    HttpClient client(port_);
    client.send("GET " + path + " HTTP/1.1\r\n" + headers + "\r\n");
    return client.answer();
  }
  int stop(int signal) {
    program_.send(signal);
    EXPECT_TRUE(program_.ends_within(60)) << said();
    return program_.wait();
  }

 private:
  static std::vector<std::string> words(const std::filesystem::path& runs, std::vector<std::string> more) {
    std::vector<std::string> all = {WITAN_PROGRAM, "watch", "--runs-folder", runs};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::filesystem::path log_;
  Program program_;
  int port_ = 0;
  std::string token_;
};

using WatchTest = MadeUpRuns;

TEST_F(WatchTest, ServesTheLatestRunUntilItIsStopped) {
  make("a", 30, "", "");
  Watching watching(runs_, folder_ / "log", {"--port", "0"});
  const std::string query = "?token=" + watching.token();
  const HttpAnswer page = watching.get("/" + query, "Host: localhost\r\n");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("Training loss"));
  EXPECT_EQ(HttpClient::header(page.head, "X-Frame-Options"), "DENY");
  EXPECT_EQ(HttpClient::header(page.head, "Cache-Control"), "no-store");
  EXPECT_EQ(HttpClient::header(page.head, "Referrer-Policy"), "no-referrer");
  const json update = watching.get("/update" + query + "&known=-1", "Host: localhost\r\n").json();
  EXPECT_EQ(update["data"]["steps"], json({1, 30}));
  HttpClient head(watching.port());
  head.send("HEAD /" + query + " HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n");
  const HttpAnswer headers = head.head();
  EXPECT_EQ(headers.status, 200);
  EXPECT_EQ(HttpClient::header(headers.head, "Content-Encoding"), "gzip");
  EXPECT_FALSE(head.receive()) << "no body";
  EXPECT_EQ(watching.get("/", "Host: localhost\r\n").status, 403);
  EXPECT_EQ(watching.get("/" + query, "Host: evil.example\r\n").status, 403);
  EXPECT_EQ(watching.get("/" + query, "Host: localhost\r\nOrigin: http://evil.example\r\n").status, 403);
  EXPECT_EQ(watching.get("/" + query, "").status, 400) << "without a Host header";
  const std::string before = watching.said();
  EXPECT_EQ(watching.stop(SIGINT), 0);
  EXPECT_EQ(watching.said(), before) << "it ends silently";
}

TEST_F(WatchTest, TokensAreNewForEachCallAndPortsMayBeTaken) {
  make("a", 3);
  Watching one(runs_, folder_ / "one", {"a"}), other(runs_, folder_ / "other", {"a"});
  EXPECT_NE(one.port(), other.port()) << "the next free port";
  EXPECT_NE(one.token(), other.token());
  expect_refusal({"watch", "a", "--port", std::to_string(one.port()), "--runs-folder", runs_.string()}, 2,
                 {"cannot listen at 127.0.0.1", "choose another with --port"});
  EXPECT_EQ(one.stop(SIGTERM), 0);
  EXPECT_EQ(other.stop(SIGTERM), 0);
}

TEST_F(WatchTest, RefusesOtherFolders) {
  make("a", 3);
  const std::string folder = runs_.string();
  expect_refusal({"watch", "b", "--runs-folder", folder}, 2, {"no run b"});
  expect_refusal({"watch", "a", "a", "--runs-folder", folder}, 2, {"the run a is named twice"});
  expect_refusal({"watch", "../a", "--runs-folder", folder}, 2, {"no run ../a"});
}

}  // namespace
}  // namespace witan::test
