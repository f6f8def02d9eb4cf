// The endpoints over HTTP on this machine: what OpenAI's clients read, and how they are refused.
#include "witan/serve/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "serve/http_client.h"
#include "serve/parrot.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using nlohmann::json;
using test::HttpAnswer;
using test::HttpClient;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::string kCompletions = "/v1/completions", kChat = "/v1/chat/completions";

class ServiceTest : public ::testing::Test {
 protected:
  void start(serve::ServiceOptions options = {}, serve::HttpLimits limits = {}, int64_t most_tokens = 1000) {
    start(test::served(parrot_, most_tokens), std::move(options), limits);
  }
  void start(serve::ServedModel model, serve::ServiceOptions options = {}, serve::HttpLimits limits = {}) {
    service_ = std::make_unique<serve::Service>(std::move(model), std::move(options));
    server_ = std::make_unique<serve::HttpServer>(
        "127.0.0.1", 0, limits, [this](const auto& request, auto reply) { service_->handle(request, reply); },
        [](int status, const std::string& message) { return serve::ApiError(status, message).body(); },
        [this](const auto& head) { return service_->answer_head(head); });
  }
  void TearDown() override {
    parrot_.release();
    if (service_) service_->stop();
    server_.reset();
  }
  int port() const { return server_->port(); }
  HttpAnswer post(const std::string& path, const json& body) { return HttpClient(port()).post(path, body.dump()); }
  json complete(const json& body) {
    const HttpAnswer answer = post(kCompletions, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  json chat(const json& body) {
    const HttpAnswer answer = post(kChat, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  void expect_refusal(const HttpAnswer& answer, int status, const std::string& piece) {
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_THAT(answer.error(), HasSubstr(piece));
    EXPECT_TRUE(answer.json()["error"].contains("type"));
  }

  test::Parrot parrot_;
  std::unique_ptr<serve::Service> service_;
  std::unique_ptr<serve::HttpServer> server_;
};

// The data of each event of a stream.
std::vector<std::string> events(const std::string& body) {
  std::vector<std::string> all;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_TRUE(body.substr(at, end - at).starts_with("data: ")) << body;
    all.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return all;
}

TEST_F(ServiceTest, HealthAndModels) {
  start();
  HttpClient client(port());
  EXPECT_EQ(client.get("/health").status, 200);
  const json models = client.get("/v1/models").json();  // on the same connection
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "parrot");
  EXPECT_EQ(models["data"][0]["max_model_len"], 1000);
  EXPECT_EQ(client.get("/v1/models/parrot").json()["id"], "parrot");
  EXPECT_EQ(client.get("/v1/models/owl").status, 404);
}

TEST_F(ServiceTest, CompletesAPrompt) {
  start();
  const json answer = complete({{"model", "parrot"}, {"prompt", "abc"}, {"max_tokens", 4}});
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "parrot");
  EXPECT_THAT(answer["id"].get<std::string>(), ::testing::StartsWith("cmpl-"));
  EXPECT_EQ(answer["choices"][0]["text"], "abca");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][0]["logprobs"], nullptr);
  EXPECT_EQ(answer["usage"], (json{{"prompt_tokens", 3}, {"completion_tokens", 4}, {"total_tokens", 7}}));
  EXPECT_EQ(complete({{"prompt", "abc"}})["usage"]["completion_tokens"], 16) << "OpenAI's default";
}

TEST_F(ServiceTest, PromptsAreStringsAndTokensAndListsOfThem) {
  start();
  EXPECT_EQ(complete({{"prompt", {97, 98}}, {"max_tokens", 2}})["choices"][0]["text"], "ab");
  json answer = complete({{"prompt", {"ab", "xyz"}}, {"max_tokens", 3}});
  EXPECT_EQ(answer["choices"][0]["text"], "aba");
  EXPECT_EQ(answer["choices"][1]["text"], "xyz");
  EXPECT_EQ(answer["choices"][1]["index"], 1);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 5);
  answer =
      complete({{"prompt", json::array({json::array({97, 98}), json::array({120})})}, {"max_tokens", 2}, {"n", 2}});
  ASSERT_EQ(answer["choices"].size(), 4u);
  EXPECT_EQ(answer["choices"][1]["text"], "ab");
  EXPECT_EQ(answer["choices"][2]["text"], "xx");
}

// As clients expect that know the model's tokenizer: they spell what begins a text.
TEST_F(ServiceTest, SpecialTokensOfAPromptMayBeSpelled) {
  start();
  const json answer = complete({{"prompt", "<|endoftext|>a"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"], (json{"<|endoftext|>", "a"}));
  EXPECT_EQ(answer["choices"][0]["text"], "<|endoftext|>a");
}

TEST_F(ServiceTest, EchoAndLogprobsAreThoseOfTheWholeText) {
  start();
  const json choice = complete({{"prompt", "ab"}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 2}})["choices"][0];
  EXPECT_EQ(choice["text"], "aba");
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (json{"a", "b", "a"}));
  EXPECT_EQ(logprobs["text_offset"], (json{0, 1, 2}));
  EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
  EXPECT_FLOAT_EQ(logprobs["token_logprobs"][1].get<float>(), -.98f);
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][1].size(), 3u) << "two, and the token's own";
  EXPECT_FLOAT_EQ(logprobs["top_logprobs"][1]["b"].get<float>(), -.98f);
}

TEST_F(ServiceTest, EchoWithoutNewTokensScoresAPrompt) {
  start();
  const json choice = complete({{"prompt", "ab"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}})["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 2u);
}

TEST_F(ServiceTest, BytesThatAreNoCharactersHaveNamesOfTheirOwn) {
  start();
  const json choice = complete({{"prompt", "\xc3\xa9"}, {"max_tokens", 2}, {"logprobs", 1}})["choices"][0];
  EXPECT_EQ(choice["text"], "\xc3\xa9");
  EXPECT_EQ(choice["logprobs"]["tokens"], (json{"bytes:\\xc3", "bytes:\\xa9"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (json{0, 0}));
}

TEST_F(ServiceTest, StopStringsEndTextAndTokens) {
  start();
  const json choice =
      complete({{"prompt", "abcdef"}, {"max_tokens", 9}, {"stop", {"xx", "de"}}, {"logprobs", 0}})["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["logprobs"]["tokens"], (json{"a", "b", "c"}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"], nullptr);
  EXPECT_EQ(complete({{"prompt", "abZ"}, {"max_tokens", 9}})["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServiceTest, Chats) {
  start();
  const json body = {{"messages", {{{"role", "system"}, {"content", "a"}}, {{"role", "user"}, {"content", "bc"}}}},
                     {"max_completion_tokens", 2},
                     {"logprobs", true},
                     {"top_logprobs", 1}};
  const json answer = chat(body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_THAT(answer["id"].get<std::string>(), ::testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "ab");
  const json& second = answer["choices"][0]["logprobs"]["content"][1];
  EXPECT_EQ(second["token"], "b");
  EXPECT_EQ(second["bytes"], (json{98}));
  EXPECT_EQ(second["top_logprobs"][0]["bytes"], (json{0}));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
}

TEST_F(ServiceTest, AnswersToAChatMayTakeAllTheRoomThereIs) {
  start({}, {}, 20);
  EXPECT_EQ(chat({{"messages", {{{"role", "user"}, {"content", "abc"}}}}})["usage"]["completion_tokens"], 17);
}

TEST_F(ServiceTest, ContentMayComeInParts) {
  start();
  const json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  EXPECT_EQ(chat({{"messages", {{{"role", "user"}, {"content", parts}}}},
                  {"max_tokens", 3}})["choices"][0]["message"]["content"],
            "aba");
}

TEST_F(ServiceTest, StreamsCompletionsAsEvents) {
  start();
  const json body = {{"prompt", "abcd"}, {"max_tokens", 6}, {"stop", "da"},
                     {"stream", true},   {"logprobs", 1},   {"stream_options", {{"include_usage", true}}}};
  const HttpAnswer answer = post(kCompletions, body);
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, AllOf(HasSubstr("text/event-stream"), HasSubstr("Transfer-Encoding: chunked")));
  const auto all = events(answer.body);
  EXPECT_EQ(all.back(), "[DONE]");
  std::string text, finish;
  std::vector<std::string> tokens;
  for (size_t i = 0; i + 2 < all.size(); ++i) {
    const json choice = json::parse(all[i])["choices"][0];
    text += choice["text"];
    if (!choice["logprobs"].is_null())
      for (const json& token : choice["logprobs"]["tokens"]) tokens.push_back(token);
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(text, "abc");
  EXPECT_THAT(tokens, ElementsAre("a", "b", "c"));
  EXPECT_EQ(finish, "stop");
  const json last = json::parse(all[all.size() - 2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], 5);
}

TEST_F(ServiceTest, StreamsChatsAsEvents) {
  start();
  const HttpAnswer answer = post(
      kChat, {{"messages", {{{"role", "user"}, {"content", "abc"}}}}, {"max_tokens", 3}, {"stream", true}, {"n", 2}});
  std::string text[2];
  int ends = 0;
  auto all = events(answer.body);
  ASSERT_EQ(all.back(), "[DONE]");
  all.pop_back();
  for (const std::string& event : all) {
    const json chunk = json::parse(event);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    const json& choice = chunk["choices"][0];
    text[choice["index"].get<size_t>()] += choice["delta"]["content"];
    ends += choice["finish_reason"] == "length";
  }
  EXPECT_EQ(text[0], "abc");
  EXPECT_EQ(text[1], "abc");
  EXPECT_EQ(ends, 2);
}

TEST_F(ServiceTest, TheFirstChunkOfEachChoiceSaysWhoSpeaksAndNoOther) {
  start();
  const HttpAnswer answer = post(
      kChat, {{"messages", {{{"role", "user"}, {"content", "abc"}}}}, {"max_tokens", 3}, {"stream", true}, {"n", 2}});
  std::vector<std::string> roles[2];
  auto all = events(answer.body);
  all.pop_back();
  for (const std::string& event : all) {
    const json choice = json::parse(event)["choices"][0];
    roles[choice["index"].get<size_t>()].push_back(choice["delta"].value("role", ""));
  }
  for (auto& of_choice : roles) {
    ASSERT_GT(of_choice.size(), 1u);
    EXPECT_EQ(of_choice[0], "assistant");
    EXPECT_EQ(std::ranges::count(of_choice, ""), static_cast<int64_t>(of_choice.size()) - 1);
  }
}

// The parrot's tokens are the likelier the smaller they are.
TEST_F(ServiceTest, TheBestOfSeveralIsGiven) {
  serve::ServedModel model = test::served(parrot_);
  model.make_engine = [this] { return std::make_unique<test::VariedParrot>(parrot_); };
  start(std::move(model));
  const json answer = complete({{"prompt", {"m", "g"}}, {"max_tokens", 2}, {"best_of", 3}, {"n", 2}, {"seed", 1}});
  EXPECT_EQ(parrot_.asked().size(), 6u);
  ASSERT_EQ(answer["choices"].size(), 4u);
  const std::vector<std::string> expected = {"mm", "nn", "gg", "hh"};  // of mm, nn, oo and gg, hh, ii
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["text"], expected[i]);
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["logprobs"], nullptr) << "they were not asked for";
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12) << "all that were computed";
}

// Choices of a prompt would all be one text if they were drawn from one seed.
TEST_F(ServiceTest, ChoicesAreDrawnFromSeedsOfTheirOwn) {
  start();
  complete({{"prompt", "abc"}, {"max_tokens", 1}, {"n", 3}, {"seed", 5}});
  const auto asked = parrot_.asked();
  ASSERT_EQ(asked.size(), 3u);
  std::set<uint64_t> seeds;
  for (const GenerationRequest& one : asked) seeds.insert(one.options.sampler.seed);
  EXPECT_EQ(seeds.size(), 3u);
  EXPECT_EQ(asked[0].options.sampler.seed, 5u) << "the first as the only one would";
  EXPECT_EQ(asked[0].top_logprobs, -1);
  complete({{"prompt", "abc"}, {"max_tokens", 1}, {"best_of", 2}});
  EXPECT_EQ(parrot_.asked().back().top_logprobs, 0) << "by which they are compared";
}

TEST_F(ServiceTest, TheAuthorsSettingsApplyWhereARequestSaysNothing) {
  serve::ServedModel model = test::served(parrot_);
  model.defaults.temperature = 0.5;
  model.defaults.top_k = 7;
  model.defaults.top_p = 0.75;
  model.defaults.min_p = 0.125;
  model.defaults.repetition_penalty = 1.5;
  start(std::move(model));
  complete({{"prompt", "abc"}, {"max_tokens", 1}});
  complete({{"prompt", "abc"}, {"max_tokens", 1}, {"temperature", 0.25}, {"top_p", 1}, {"min_p", 0}});
  const SamplerOptions theirs = parrot_.asked().at(0).options.sampler, own = parrot_.asked().at(1).options.sampler;
  EXPECT_EQ(theirs.temperature, .5);
  EXPECT_EQ(theirs.top_k, 7);
  EXPECT_EQ(theirs.top_p, .75);
  EXPECT_EQ(theirs.min_p, .125);
  EXPECT_EQ(theirs.repetition_penalty, 1.5);
  EXPECT_EQ(own.temperature, .25);
  EXPECT_EQ(own.top_p, 1);
  EXPECT_EQ(own.min_p, 0);
  EXPECT_EQ(own.top_k, 7);
}

TEST_F(ServiceTest, PenaltiesAndBiasesReachTheSampler) {
  serve::ServedModel model = test::served(parrot_);
  model.make_engine = [this] { return std::make_unique<test::VariedParrot>(parrot_); };
  start(std::move(model));
  const json body = {{"prompt", "m"},
                     {"max_tokens", 1},
                     {"presence_penalty", 0.5},
                     {"frequency_penalty", -1},
                     {"logit_bias", {{"256", 3}}}};
  complete(body);
  const SamplerOptions sampler = parrot_.asked().at(0).options.sampler;
  EXPECT_EQ(sampler.presence_penalty, .5);
  EXPECT_EQ(sampler.frequency_penalty, -1);
  EXPECT_EQ(sampler.logit_bias, (std::map<int32_t, double>{{256, 3}}));
  expect_refusal(post(kCompletions, {{"prompt", "m"}, {"logit_bias", {{"257", 3}}}}), 400,
                 "logit_bias: there is no token 257: the model has 257");
}

TEST_F(ServiceTest, WhatWasNotComputedAgainIsTold) {
  serve::ServedModel model = test::served(parrot_);
  model.make_engine = [this] { return std::make_unique<test::VariedParrot>(parrot_, 2); };
  start(std::move(model));
  EXPECT_EQ(complete({{"prompt", "mno"}, {"max_tokens", 1}, {"n", 2}})["usage"]["prompt_tokens_details"],
            (json{{"cached_tokens", 2}}));
}

const json kTools = json::array({{{"type", "function"}, {"function", {{"name", "look"}}}}});

TEST_F(ServiceTest, CallsOfToolsAreApartFromTheText) {
  serve::ServedModel model = test::served(parrot_);
  model.tool_format = serve::ToolFormat::hermes;
  start(std::move(model));
  const std::string call = R"(<tool_call>{"name": "look", "arguments": {"at": [1, 2]}}</tool_call>)";
  const auto body = [&](const std::string& said, bool stream) {
    return json{{"messages", {{{"role", "user"}, {"content", said}}}},
                {"tools", kTools},
                {"max_tokens", static_cast<int64_t>(said.size())},
                {"stream", stream}};
  };
  const json choice = chat(body("so " + call, false))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "so ");
  const json& called = choice["message"]["tool_calls"];
  ASSERT_EQ(called.size(), 1u);
  EXPECT_EQ(called[0]["type"], "function");
  EXPECT_EQ(called[0]["function"], (json{{"name", "look"}, {"arguments", R"({"at":[1,2]})"}}));
  EXPECT_EQ(chat(body(call, false))["choices"][0]["message"]["content"], nullptr);
  // What is not whole is text.
  const std::string cut = call.substr(0, call.size() - 1);
  const json text = chat(body(cut, false))["choices"][0];
  EXPECT_EQ(text["message"]["content"], cut);
  EXPECT_FALSE(text["message"].contains("tool_calls"));
  EXPECT_EQ(text["finish_reason"], "length");

  auto all = events(post(kChat, body("so " + call, true)).body);
  all.pop_back();
  std::string content;
  json delta;
  for (const std::string& event : all) {
    delta = json::parse(event)["choices"][0];
    content += delta["delta"].value("content", "");
  }
  EXPECT_EQ(content, "so ");
  EXPECT_EQ(delta["finish_reason"], "tool_calls");
  EXPECT_EQ(delta["delta"]["tool_calls"][0]["index"], 0);
  EXPECT_EQ(delta["delta"]["tool_calls"][0]["function"]["arguments"], R"({"at":[1,2]})");
}

TEST_F(ServiceTest, ModelsWithoutToolsSaySo) {
  start();
  const json question = {{"role", "user"}, {"content", "a"}}, answer = {{"role", "tool"}, {"content", "b"}};
  expect_refusal(post(kChat, {{"messages", {question}}, {"tools", kTools}}), 400, "chat template has no tools");
  expect_refusal(post(kChat, {{"messages", {question, answer}}}), 400, "chat template has no tools");
  EXPECT_EQ(post(kChat, {{"messages", {question}}, {"tools", kTools}, {"tool_choice", "none"}}).status, 200);
}

TEST_F(ServiceTest, OldClientsGetStreamsThatEndWithTheConnection) {
  start();
  HttpClient client(port());
  const std::string body = R"({"prompt": "ab", "max_tokens": 2, "stream": true})";
  client.send("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const HttpAnswer answer = client.answer();
  EXPECT_EQ(answer.head.find("chunked"), std::string::npos);
  EXPECT_EQ(events(answer.body).back(), "[DONE]");
}

TEST_F(ServiceTest, RefusesWhatItCannotRead) {
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

TEST_F(ServiceTest, RefusesWhatIsNotThere) {
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

TEST_F(ServiceTest, PromptsThatAreTooLongAreRefusedWithTheLimit) {
  start({}, {}, 10);
  HttpAnswer answer = post(kCompletions, {{"prompt", "abcdefgh"}, {"max_tokens", 3}});
  expect_refusal(answer, 400, "a prompt of 8 tokens and max_tokens = 3 are more than the 10 tokens");
  EXPECT_EQ(answer.code(), "context_length_exceeded");
  EXPECT_EQ(post(kCompletions, {{"prompt", "abcdefgh"}, {"max_tokens", 2}}).status, 200);
  EXPECT_EQ(complete({{"prompt", "abcdefgh"}})["usage"]["completion_tokens"], 2) << "what fits";
  answer = post(kCompletions, {{"prompt", "abcdefghijk"}});
  expect_refusal(answer, 400, "the prompt has more than the 10 tokens");
  EXPECT_EQ(answer.code(), "context_length_exceeded");
}

TEST_F(ServiceTest, ModelsWithoutATemplateSaySo) {
  serve::ServedModel model = test::served(parrot_);
  model.encode_chat = nullptr;
  model.no_chat = "this run has no chat template";
  start(std::move(model));
  const HttpAnswer answer = post(kChat, {{"messages", {{{"role", "user"}, {"content", "a"}}}}});
  expect_refusal(answer, 400, "this run has no chat template");
  EXPECT_EQ(answer.code(), "no_chat_template");
}

TEST_F(ServiceTest, AModelThatFailsIsAnError) {
  start();
  expect_refusal(post(kCompletions, {{"prompt", "E"}}), 500, "the parrot cannot say E");
  expect_refusal(post(kCompletions, {{"prompt", "F"}}), 500, "the parrot has fainted");
  EXPECT_EQ(complete({{"prompt", "ab"}, {"max_tokens", 2}})["choices"][0]["text"], "ab") << "and the next goes on";
}

TEST_F(ServiceTest, AKeyIsAskedForWhereThereIsOne) {
  start({.api_key = "secret"});
  HttpClient client(port());
  EXPECT_EQ(client.get("/health").status, 200) << "which tells nothing";
  const HttpAnswer without = client.get("/v1/models");
  EXPECT_EQ(without.status, 401);
  EXPECT_EQ(without.code(), "invalid_api_key");
  EXPECT_EQ(client.get("/v1/models", "Authorization: Bearer secrets\r\n").status, 401);
  for (const char* value : {"", "secret", "Basic secret", "Bearersecret", "Bearer", "Bearer ", "Bearer SECRET"})
    EXPECT_EQ(client.get("/v1/models", cat("Authorization: ", value, "\r\n")).status, 401) << value;
  for (const char* scheme : {"Bearer", "bearer", "BEARER", "bEaReR ", "Bearer  "})
    EXPECT_EQ(client.get("/v1/models", cat("Authorization: ", scheme, " secret\r\n")).status, 200) << scheme;
}

// Nothing of a body is received, or kept, of who may not send one.
TEST_F(ServiceTest, RefusalsDoNotWaitForTheBody) {
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
  EXPECT_EQ(ask(kCompletions, type + "Expect: 100-continue\r\n"), 401) << "instead of an invitation";
  EXPECT_EQ(ask(kCompletions, key), 415);
  EXPECT_EQ(ask("/v1/none", type + key), 404);
  EXPECT_EQ(ask("/health", type), 405);
  service_->refuse_new();
  EXPECT_EQ(ask(kCompletions, type + key), 503);
  EXPECT_EQ(server_->body_bytes(), 0);
}

// Without a key, everything that runs on this machine may ask, but for pages of other sites in its browsers.
TEST_F(ServiceTest, PagesOfOtherSitesAreRefusedWhereThereIsNoKey) {
  const auto status = [&](const std::string& host, const std::string& lines = "") {
    HttpClient client(port());
    client.send("GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n" + lines + "\r\n");
    return client.answer().status;
  };
  start({.host = "My-Machine"});
  for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "my-machine:1"})
    EXPECT_EQ(status(host), 200) << host;
  for (const char* host : {"", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0:8000",
                           "192.0.2.1", "[::2]", "[::1].evil"})
    EXPECT_EQ(status(host), 403) << host;
  EXPECT_EQ(status("localhost:1", "Origin: http://localhost:1\r\n"), 200);
  for (const char* origin : {"null", "http://evil.example", "https://localhost:1", "http://localhost:3000"})
    EXPECT_EQ(status("localhost:1", cat("Origin: ", origin, "\r\n")), 403) << origin;
  HttpClient url(port());
  url.send("GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  expect_refusal(url.answer(), 403, "not to the host name evil.example");
  TearDown();
  start({.api_key = "secret"});
  EXPECT_EQ(status("evil.example", "Origin: http://evil.example\r\nAuthorization: Bearer secret\r\n"), 200);
}

TEST_F(ServiceTest, WhatComesJoinsTheBatchAndWhatEndsLeavesIt) {
  start();  // rooms for three
  parrot_.hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (const int tokens : {3, 1, 1, 2}) {  // one after the other
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->send(HttpClient::post_text(kCompletions, json{{"prompt", "ab"}, {"max_tokens", tokens}}.dump()));
    if (clients.size() == 1) parrot_.wait_for_steps(1);
    while (service_->waiting() < static_cast<int64_t>(clients.size()) - 1) std::this_thread::yield();
  }
  parrot_.release();
  for (const auto& client : clients) EXPECT_EQ(client->answer().status, 200);
  EXPECT_THAT(parrot_.steps(), ElementsAre(1, 3, 2, 1));
}

TEST_F(ServiceTest, AFullQueueRefuses) {
  start({.waiting = 2});
  parrot_.hold();
  HttpClient first(port()), second(port()), third(port());
  const std::string four = HttpClient::post_text(kCompletions, R"({"prompt": ["a", "b", "c", "d"], "max_tokens": 1})");
  first.send(four);
  parrot_.wait_for_steps(1);  // of its four sequences, one waits
  const HttpAnswer full = second.post(kCompletions, R"({"prompt": ["a", "b"], "max_tokens": 1})");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(HttpClient::header(full.head, "Retry-After"), "1");
  third.send(HttpClient::post_text(kCompletions, R"({"prompt": "c", "max_tokens": 1})"));
  while (server_->busy() < 2) std::this_thread::yield();
  parrot_.release();
  EXPECT_EQ(first.answer().status, 200);
  EXPECT_EQ(third.answer().status, 200);
}

TEST_F(ServiceTest, AClientThatLeavesCancelsItsRequest) {
  start();
  for (const char* stream : {"false", "true"}) {
    parrot_.hold();
    auto client = std::make_unique<HttpClient>(port());
    client->send(HttpClient::post_text(
        kCompletions, std::string(R"({"prompt": "ab", "max_tokens": 900, "stream": )") + stream + "}"));
    while (server_->busy() < 1) std::this_thread::yield();
    client.reset();
    while (server_->busy() > 0) std::this_thread::yield();  // it was noticed
    parrot_.release();
  }
  EXPECT_EQ(complete({{"prompt", "ab"}, {"max_tokens", 2}})["choices"][0]["text"], "ab");
}

TEST_F(ServiceTest, AStreamThatIsCutOffStopsTheModel) {
  start();
  auto client = std::make_unique<HttpClient>(port());
  parrot_.hold();
  client->send(HttpClient::post_text(kCompletions, R"({"prompt": "ab", "max_tokens": 900, "stream": true})"));
  parrot_.wait_for_steps(1);
  client.reset();
  while (server_->busy() > 0) std::this_thread::yield();
  parrot_.release();
  parrot_.wait_for_stop();
}

// After it has read the beginning.
TEST_F(ServiceTest, AClientThatLeavesInTheMiddleOfAStreamStopsTheModel) {
  start();
  auto client = std::make_unique<HttpClient>(port());
  client->send(HttpClient::post_text(kCompletions, R"({"prompt": "ab", "max_tokens": 900, "stream": true})"));
  ASSERT_TRUE(client->receive_until("data: "));
  parrot_.hold();
  const size_t steps = parrot_.steps().size();
  client.reset();
  while (server_->busy() > 0) std::this_thread::yield();
  parrot_.release();
  if (steps < 890) parrot_.wait_for_stop();
  EXPECT_EQ(complete({{"prompt", "ab"}, {"max_tokens", 2}})["choices"][0]["text"], "ab") << "the room is free again";
}

TEST_F(ServiceTest, StoppingFinishesWhatWasAskedForAndTakesNoMore) {
  start();
  parrot_.hold();
  HttpClient early(port());
  early.send(HttpClient::post_text(kCompletions, R"({"prompt": "ab", "max_tokens": 2})"));
  parrot_.wait_for_steps(1);
  service_->refuse_new();
  expect_refusal(post(kCompletions, {{"prompt", "a"}}), 503, "stopping");
  EXPECT_EQ(HttpClient(port()).get("/health").status, 503);
  parrot_.release();
  EXPECT_EQ(early.answer().status, 200);
}

TEST_F(ServiceTest, StoppingAtOnceEndsWhatIsComputed) {
  start();
  parrot_.hold();
  HttpClient client(port());
  client.send(HttpClient::post_text(kCompletions, R"({"prompt": "ab", "max_tokens": 900})"));
  parrot_.wait_for_steps(1);
  parrot_.release();
  service_->stop();
}

TEST_F(ServiceTest, AStopStringEndsTheTokensBehindAnEchoWhereItEndsTheText) {
  start();
  const json choice = complete(
      {{"prompt", "abcdef"}, {"max_tokens", 9}, {"echo", true}, {"stop", "de"}, {"logprobs", 0}})["choices"][0];
  EXPECT_EQ(choice["text"], "abcdefabc");
  EXPECT_EQ(choice["logprobs"]["tokens"], (json{"a", "b", "c", "d", "e", "f", "a", "b", "c"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (json{0, 1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(ServiceTest, AStepBeginsPromptsOfNoMoreTokensThanOneTextMayHave) {
  start({}, {}, 10);
  complete({{"prompt", {"abcdef", "abcdef"}}, {"max_tokens", 2}});
  EXPECT_THAT(parrot_.steps(), ElementsAre(1, 2, 1)) << "the second prompt waits a step";
}

TEST_F(ServiceTest, TokensBehindTheVocabularyAreRefused) {
  start();
  const auto last = [](int32_t id) { return json{{"prompt", json::array({97, id})}, {"max_tokens", 1}}; };
  EXPECT_EQ(post(kCompletions, last(256)).status, 200);
  expect_refusal(post(kCompletions, last(257)), 400, "there is no token 257: the model has 257");
}

}  // namespace
}  // namespace witan
