// The endpoints over HTTP on this machine, as OpenAI's clients use them.
#include "witan/serve/service.h"

#include <set>

#include "serve/service_support.h"

namespace witan::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

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

TEST_F(ServiceTest, AcceptsStringsTokensAndListsAsPrompts) {
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

// Clients that know the model's tokenizer spell out the token that begins a text.
TEST_F(ServiceTest, ParsesSpecialTokensInPrompts) {
  start();
  const json answer = complete({{"prompt", "<|endoftext|>a"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"], (json{"<|endoftext|>", "a"}));
  EXPECT_EQ(answer["choices"][0]["text"], "<|endoftext|>a");
}

TEST_F(ServiceTest, EchoAndLogprobsCoverTheWholeText) {
  start();
  const json choice = complete({{"prompt", "ab"}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 2}})["choices"][0];
  EXPECT_EQ(choice["text"], "aba");
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (json{"a", "b", "a"}));
  EXPECT_EQ(logprobs["text_offset"], (json{0, 1, 2}));
  EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
  EXPECT_FLOAT_EQ(logprobs["token_logprobs"][1].get<float>(), -.98f);
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][1].size(), 3u) << "two, and the token itself";
  EXPECT_FLOAT_EQ(logprobs["top_logprobs"][1]["b"].get<float>(), -.98f);
}

TEST_F(ServiceTest, EchoWithoutNewTokensScoresAPrompt) {
  start();
  const json choice = complete({{"prompt", "ab"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}})["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 2u);
}

TEST_F(ServiceTest, NamesBytesThatAreNotCharacters) {
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

TEST_F(ServiceTest, AnswersChats) {
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

TEST_F(ServiceTest, ChatAnswersMayFillTheContext) {
  start({}, {}, 20);
  EXPECT_EQ(chat({{"messages", {{{"role", "user"}, {"content", "abc"}}}}})["usage"]["completion_tokens"], 17);
}

TEST_F(ServiceTest, AcceptsContentInParts) {
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

TEST_F(ServiceTest, OnlyTheFirstChunkOfEachChoiceHasARole) {
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

// Smaller tokens of the parrot are more likely.
TEST_F(ServiceTest, ReturnsTheBestOfSeveral) {
  serve::ServedModel model = served(parrot_);
  model.make_engine = [this] { return std::make_unique<VariedParrot>(parrot_); };
  start(std::move(model));
  const json answer = complete({{"prompt", {"m", "g"}}, {"max_tokens", 2}, {"best_of", 3}, {"n", 2}, {"seed", 1}});
  EXPECT_EQ(parrot_.asked().size(), 6u);
  ASSERT_EQ(answer["choices"].size(), 4u);
  const std::vector<std::string> expected = {"mm", "nn", "gg", "hh"};  // of mm, nn, oo and gg, hh, ii
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["text"], expected[i]);
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["logprobs"], nullptr) << "logprobs were not requested";
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12) << "all computed tokens";
}

// With a single seed, all choices of a prompt would be the same text.
TEST_F(ServiceTest, DrawsEachChoiceFromItsOwnSeed) {
  start();
  complete({{"prompt", "abc"}, {"max_tokens", 1}, {"n", 3}, {"seed", 5}});
  const auto asked = parrot_.asked();
  ASSERT_EQ(asked.size(), 3u);
  std::set<uint64_t> seeds;
  for (const GenerationRequest& one : asked) seeds.insert(one.options.sampler.seed);
  EXPECT_EQ(seeds.size(), 3u);
  EXPECT_EQ(asked[0].options.sampler.seed, 5u) << "the first one as if it were the only one";
  EXPECT_EQ(asked[0].top_logprobs, -1);
  complete({{"prompt", "abc"}, {"max_tokens", 1}, {"best_of", 2}});
  EXPECT_EQ(parrot_.asked().back().top_logprobs, 0) << "the scores by which they are compared";
}

TEST_F(ServiceTest, UsesTheModelsSettingsByDefault) {
  serve::ServedModel model = served(parrot_);
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

TEST_F(ServiceTest, PassesPenaltiesAndBiasesToTheSampler) {
  serve::ServedModel model = served(parrot_);
  model.make_engine = [this] { return std::make_unique<VariedParrot>(parrot_); };
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

TEST_F(ServiceTest, ReportsCachedTokens) {
  serve::ServedModel model = served(parrot_);
  model.make_engine = [this] { return std::make_unique<VariedParrot>(parrot_, 2); };
  start(std::move(model));
  EXPECT_EQ(complete({{"prompt", "mno"}, {"max_tokens", 1}, {"n", 2}})["usage"]["prompt_tokens_details"],
            (json{{"cached_tokens", 2}}));
}

const json kTools = json::array({{{"type", "function"}, {"function", {{"name", "look"}}}}});

TEST_F(ServiceTest, SeparatesToolCallsFromText) {
  serve::ServedModel model = served(parrot_);
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
  // Incomplete calls remain text.
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

TEST_F(ServiceTest, ReportsModelsWithoutTools) {
  start();
  const json question = {{"role", "user"}, {"content", "a"}}, answer = {{"role", "tool"}, {"content", "b"}};
  expect_refusal(post(kChat, {{"messages", {question}}, {"tools", kTools}}), 400, "chat template has no tools");
  expect_refusal(post(kChat, {{"messages", {question, answer}}}), 400, "chat template has no tools");
  EXPECT_EQ(post(kChat, {{"messages", {question}}, {"tools", kTools}, {"tool_choice", "none"}}).status, 200);
}

TEST_F(ServiceTest, StreamsToHttp10ClientsUntilTheConnectionEnds) {
  start();
  HttpClient client(port());
  const std::string body = R"({"prompt": "ab", "max_tokens": 2, "stream": true})";
  client.send("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const HttpAnswer answer = client.answer();
  EXPECT_EQ(answer.head.find("chunked"), std::string::npos);
  EXPECT_EQ(events(answer.body).back(), "[DONE]");
}

TEST_F(ServiceTest, AddsSpecialTokensByDefault) {
  serve::ServedModel model = served(parrot_);
  TokenizerSpec spec = model.tokenizer.spec();
  spec.before = {256};
  model.tokenizer = Tokenizer(std::move(spec));
  start(std::move(model));
  const auto begins = [&] { return parrot_.asked().back().prompt; };
  using Ids = std::vector<int32_t>;
  const json messages = {{{"role", "user"}, {"content", "a"}}};
  complete({{"prompt", "a"}, {"max_tokens", 0}});
  EXPECT_EQ(begins(), (Ids{256, 'a'}));
  complete({{"prompt", "<|endoftext|>a"}, {"max_tokens", 0}});
  EXPECT_EQ(begins(), (Ids{256, 'a'}));
  complete({{"prompt", "a"}, {"max_tokens", 0}, {"add_special_tokens", false}});
  EXPECT_EQ(begins(), Ids{'a'});
  chat({{"messages", messages}, {"max_tokens", 0}});
  EXPECT_EQ(begins(), Ids{'a'}) << "as in the template";
  chat({{"messages", messages}, {"max_tokens", 0}, {"add_special_tokens", true}});
  EXPECT_EQ(begins(), (Ids{256, 'a'}));
}

TEST_F(ServiceTest, StopStringsEndTokensAfterAnEcho) {
  start();
  const json choice = complete(
      {{"prompt", "abcdef"}, {"max_tokens", 9}, {"echo", true}, {"stop", "de"}, {"logprobs", 0}})["choices"][0];
  EXPECT_EQ(choice["text"], "abcdefabc");
  EXPECT_EQ(choice["logprobs"]["tokens"], (json{"a", "b", "c", "d", "e", "f", "a", "b", "c"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (json{0, 1, 2, 3, 4, 5, 6, 7, 8}));
}

}  // namespace
}  // namespace witan::test
