// The endpoints refuse requests that they cannot fulfil and clients without authorization.
#include <gtest/gtest.h>

#include <set>

#include "serve/service_support.h"
#include "witan/serve/access.h"

namespace witan::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST_F(ServiceTest, RefusesUnreadableRequests) {
  start();
  for (const char* bad :
       {"", "{", "[1]", "\"a\"", "{\"prompt\": \"\xff\"}", "{\"prompt\": \"a\", \"prompt\": \"b\"}"}) {
    const HttpAnswer answer = HttpClient(port()).post(kCompletions, bad);
    EXPECT_EQ(answer.status, 400) << bad;
    EXPECT_EQ(answer.code(), "invalid_json") << bad;
  }
  expect_refusal(HttpClient(port()).post(kCompletions, std::string(10000, '[')), 400, "nested deeper than 32");
  HttpClient form(port());
  form.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  expect_refusal(form.answer(), 415, "application/json");
}

TEST_F(ServiceTest, RefusesUnknownPathsAndModels) {
  start();
  expect_refusal(HttpClient(port()).get("/v1/embeddings"), 404, "/v1/completions");
  expect_refusal(post(kCompletions, {{"model", "owl"}, {"prompt", "a"}}), 404, "this server has parrot");
  const HttpAnswer get = HttpClient(port()).get(kCompletions);
  EXPECT_EQ(get.status, 405);
  EXPECT_EQ(HttpClient::header(get.head, "Allow"), "POST");
  const HttpAnswer post = HttpClient(port()).post("/health", "{}");
  EXPECT_EQ(post.status, 405);
  EXPECT_EQ(HttpClient::header(post.head, "Allow"), "GET, HEAD");
  HttpClient client(port());
  client.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.head().status, 200);
}

TEST_F(ServiceTest, RefusalsOfLongPromptsNameTheLimit) {
  start({}, {}, 10);
  HttpAnswer answer = post(kCompletions, {{"prompt", "abcdefgh"}, {"max_tokens", 3}});
  expect_refusal(answer, 400, "a prompt of 8 tokens and max_tokens = 3 are more than the 10 tokens");
  EXPECT_EQ(answer.code(), "context_length_exceeded");
  EXPECT_EQ(post(kCompletions, {{"prompt", "abcdefgh"}, {"max_tokens", 2}}).status, 200);
  EXPECT_EQ(complete({{"prompt", "abcdefgh"}})["usage"]["completion_tokens"], 2) << "this length fits";
  answer = post(kCompletions, {{"prompt", "abcdefghijk"}});
  expect_refusal(answer, 400, "the prompt has more than the 10 tokens");
  EXPECT_EQ(answer.code(), "context_length_exceeded");
}

TEST_F(ServiceTest, LimitsPromptsTimesChoices) {
  start({.waiting = 2000});
  const auto body = [](size_t prompts, int64_t n) {
    return json{{"prompt", std::vector<std::string>(prompts, "a")}, {"n", n}, {"max_tokens", 0}};
  };
  EXPECT_EQ(complete(body(8, 128))["choices"].size(), 1024u);
  expect_refusal(post(kCompletions, body(9, 114)), 400,
                 "9 prompts with n = 114 are more than the 1024 sequences that a request may have");
}

TEST_F(ServiceTest, RefusesChatsWithoutATemplate) {
  serve::ServedModel model = served(parrot_);
  model.encode_chat = nullptr;
  model.no_chat = "this run has no chat template";
  start(std::move(model));
  const HttpAnswer answer = post(kChat, {{"messages", {{{"role", "user"}, {"content", "a"}}}}});
  expect_refusal(answer, 400, "this run has no chat template");
  EXPECT_EQ(answer.code(), "no_chat_template");
}

TEST_F(ServiceTest, ReportsFailuresOfTheModel) {
  start();
  expect_refusal(post(kCompletions, {{"prompt", "E"}}), 500, "the parrot cannot say E");
  expect_refusal(post(kCompletions, {{"prompt", "F"}}), 500, "the parrot has fainted");
  EXPECT_EQ(complete({{"prompt", "ab"}, {"max_tokens", 2}})["choices"][0]["text"], "ab") << "the next request succeeds";
}

TEST_F(ServiceTest, RequiresTheKeyIfThereIsOne) {
  start({.api_key = "secret"});
  HttpClient client(port());
  EXPECT_EQ(client.get("/health").status, 200) << "it reveals nothing";
  const HttpAnswer without = client.get("/v1/models");
  EXPECT_EQ(without.status, 401);
  EXPECT_EQ(without.code(), "invalid_api_key");
  EXPECT_EQ(client.get("/v1/models", "Authorization: Bearer secrets\r\n").status, 401);
  for (const char* value : {"", "secret", "Basic secret", "Bearersecret", "Bearer", "Bearer ", "Bearer SECRET"})
    EXPECT_EQ(client.get("/v1/models", cat("Authorization: ", value, "\r\n")).status, 401) << value;
  for (const char* scheme : {"Bearer", "bearer", "BEARER", "bEaReR ", "Bearer  "})
    EXPECT_EQ(client.get("/v1/models", cat("Authorization: ", scheme, " secret\r\n")).status, 200) << scheme;
}

// The server neither receives nor stores a body from an unauthorized client.
TEST_F(ServiceTest, RefusesBeforeReadingTheBody) {
  start({.api_key = "secret"});
  const auto ask = [&](const std::string& path, const std::string& lines) {
    HttpClient client(port());
    client.send("POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n" + lines + "\r\n");
    const HttpAnswer answer = client.answer();
    EXPECT_EQ(HttpClient::header(answer.head, "Connection"), "close");
    return answer.status;
  };
  const std::string key = "Authorization: Bearer secret\r\n", type = "Content-Type: application/json\r\n";
  EXPECT_EQ(ask(kCompletions, type), 401);
  EXPECT_EQ(ask(kCompletions, type + "Expect: 100-continue\r\n"), 401) << "instead of an interim answer";
  EXPECT_EQ(ask(kCompletions, key), 415);
  EXPECT_EQ(ask("/v1/none", type + key), 404);
  EXPECT_EQ(ask("/health", type), 405);
  service_->refuse_new();
  EXPECT_EQ(ask(kCompletions, type + key), 503);
  EXPECT_EQ(server_->body_bytes(), 0);
}

// Without a key, every program on this machine has access, except pages of other sites in its browsers.
TEST_F(ServiceTest, RefusesPagesOfOtherSitesWithoutAKey) {
  const auto status = [&](const std::string& host, const std::string& lines = "") {
    HttpClient client(port());
    client.send("GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n" + lines + "\r\n");
    return client.answer().status;
  };
  start({.host = "My-Machine"});
  for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]",
                           "my-machine:1", "LOCALHOST.", "localhost.:8000"})
    EXPECT_EQ(status(host), 200) << host;
  for (const char* host : {"", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0:8000",
                           "192.0.2.1", "[::2]", "[::1].evil"})
    EXPECT_EQ(status(host), 403) << host;
  EXPECT_EQ(status("localhost:1", "Origin: http://localhost:1\r\n"), 200);
  EXPECT_EQ(status("LocalHost:1", "Origin: HTTP://LOCALHOST:1\r\n"), 200) << "names and schemes are case-insensitive";
  for (const char* origin : {"null", "http://evil.example", "https://localhost:1", "http://localhost:3000"})
    EXPECT_EQ(status("localhost:1", cat("Origin: ", origin, "\r\n")), 403) << origin;
  HttpClient url(port());
  url.send("GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  expect_refusal(url.answer(), 403, "not to the host name evil.example");
  TearDown();
  start({.api_key = "secret"});
  EXPECT_EQ(status("evil.example", "Origin: http://evil.example\r\nAuthorization: Bearer secret\r\n"), 200);
}

TEST_F(ServiceTest, RefusesWhenTheQueueIsFull) {
  start({.waiting = 2});
  parrot_.hold();
  HttpClient first(port()), second(port()), third(port());
  const std::string four = HttpClient::post_text(kCompletions, R"({"prompt": ["a", "b", "c", "d"], "max_tokens": 1})");
  first.send(four);
  parrot_.wait_for_steps(1);  // one of its four sequences waits
  const HttpAnswer full = second.post(kCompletions, R"({"prompt": ["a", "b"], "max_tokens": 1})");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(HttpClient::header(full.head, "Retry-After"), "1");
  third.send(HttpClient::post_text(kCompletions, R"({"prompt": "c", "max_tokens": 1})"));
  while (server_->busy() < 2) std::this_thread::yield();
  parrot_.release();
  EXPECT_EQ(first.answer().status, 200);
  EXPECT_EQ(third.answer().status, 200);
}

TEST_F(ServiceTest, RefusesTokensOutsideTheVocabulary) {
  start();
  const auto last = [](int32_t id) { return json{{"prompt", json::array({97, id})}, {"max_tokens", 1}}; };
  EXPECT_EQ(post(kCompletions, last(256)).status, 200);
  expect_refusal(post(kCompletions, last(257)), 400, "there is no token 257: the model has 257");
}

}  // namespace
}  // namespace witan::test

namespace witan::serve {
namespace {

TEST(Secret, EqualsOnlyItself) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_TRUE(same_secret("", ""));
  for (const char* other : {"", "ab", "abd", "abcd", "ABC"}) EXPECT_FALSE(same_secret("abc", other)) << other;
}

TEST(Secret, IsNewEachTime) {
  std::set<std::string> secrets;
  for (int i = 0; i < 100; ++i) {
    const std::string secret = new_secret();
    EXPECT_EQ(secret.size(), 32u);
    EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos) << secret;
    secrets.insert(secret);
  }
  EXPECT_EQ(secrets.size(), 100u);
}

}  // namespace
}  // namespace witan::serve
