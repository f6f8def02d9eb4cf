#include "witan/serve/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/serve/request_members.h"

namespace witan {
namespace {

using serve::ApiError;
using serve::parse_chat_request;
using serve::parse_completion_request;
using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string completion_error(const std::string& members) {
  return message_of<ApiError>([&] { parse_completion_request(R"({"prompt": "a", )" + members + "}"); });
}

std::string chat_error(const std::string& members) {
  return message_of<ApiError>([&] { parse_chat_request("{" + members + "}"); });
}

// Requests of OpenAI's Python client and lm-eval.
TEST(CompletionRequests, ReadFieldsThatClientsSend) {
  const auto request = parse_completion_request(
      R"({"model": "m", "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0, "top_p": 0.5, "n": 2, "seed": -3,
          "stop": "x", "echo": true, "logprobs": 1, "stream": false, "user": "me", "frequency_penalty": 0.5,
          "presence_penalty": -2, "logit_bias": {"7": -100, "0": 0.5}, "suffix": null, "best_of": 3, "top_k": 40,
          "min_p": 0.05, "repetition_penalty": 1.1})");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.prompts.size(), 2u);
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.temperature, 0);
  EXPECT_EQ(request.top_p, .5);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.seed, static_cast<uint64_t>(-3));
  EXPECT_THAT(request.stop, ElementsAre("x"));
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.top_logprobs, 1);
  EXPECT_EQ(request.top_k, 40);
  EXPECT_EQ(request.min_p, .05);
  EXPECT_EQ(request.repetition_penalty, 1.1);
  EXPECT_EQ(request.frequency_penalty, .5);
  EXPECT_EQ(request.presence_penalty, -2);
  EXPECT_EQ(request.logit_bias, (std::map<int32_t, double>{{0, .5}, {7, -100}}));
  EXPECT_EQ(request.best_of, 3);
}

TEST(CompletionRequests, UseDefaultsForMissingFields) {
  const auto request = parse_completion_request(R"({"prompt": [1, 2, 3], "stop": null, "temperature": null})");
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompts.at(0)), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.temperature, std::nullopt);
  EXPECT_EQ(request.seed, std::nullopt);
  EXPECT_EQ(request.top_logprobs, -1);
  EXPECT_EQ(request.n, 1);
  EXPECT_TRUE(request.stop.empty());
}

TEST(CompletionRequests, ErrorsNameTheInvalidField) {
  EXPECT_THAT(completion_error(R"("temperature": -1)"), HasSubstr("temperature is -1, but it must be a number from 0"));
  EXPECT_THAT(completion_error(R"("temperature": "hot")"), HasSubstr("temperature is \"hot\""));
  EXPECT_THAT(completion_error(R"("max_tokens": 1.5)"), HasSubstr("max_tokens is 1.5, but it must be an integer"));
  EXPECT_THAT(completion_error(R"("max_tokens": 99999999999)"), HasSubstr("max_tokens is 99999999999"));
  EXPECT_THAT(completion_error(R"("n": 0)"), HasSubstr("n is 0, but it must be an integer from 1 to 128"));
  EXPECT_THAT(completion_error(R"("seed": 18446744073709551615)"), HasSubstr("seed is 18446744073709551615"));
  EXPECT_THAT(completion_error(R"("logprobs": true)"), HasSubstr("logprobs is true"));
  EXPECT_THAT(completion_error(R"("stream": "yes")"), HasSubstr("stream is \"yes\", but it must be true or false"));
  EXPECT_THAT(completion_error(R"("stop": [""])"), HasSubstr("none of them empty"));
  EXPECT_THAT(completion_error(R"("stop": [1])"), HasSubstr("stop must be a string or a list of strings"));
  EXPECT_THAT(completion_error(R"("stream_options": 3)"), HasSubstr("stream_options must be an object"));
  EXPECT_THAT(completion_error(R"("presence_penalty": 2.5)"), HasSubstr("presence_penalty is 2.5"));
  EXPECT_THAT(completion_error(R"("frequency_penalty": "much")"), HasSubstr("frequency_penalty is \"much\""));
  EXPECT_THAT(completion_error(R"("n": 3, "best_of": 2)"), HasSubstr("best_of = 2 is less than n = 3"));
  for (const char* bias : {"[5]", R"({"a": 1})", R"({"5": 101})", R"({"-1": 1})", R"({"5": null})", R"({"5x": 1})"})
    EXPECT_THAT(completion_error(std::string(R"("logit_bias": )") + bias), HasSubstr("logit_bias must be an object"));
  EXPECT_THAT(message_of<ApiError>([] { parse_completion_request("{}"); }), HasSubstr("has no prompt"));
  for (const char* prompt : {"3", "[]", "[[]]", "[[1], 2.5]", "[1, \"a\"]", "[\"a\", {}]", "[-1]", "[4294967296]"})
    EXPECT_THAT(message_of<ApiError>([&] { parse_completion_request(std::string("{\"prompt\": ") + prompt + "}"); }),
                HasSubstr("prompt"));
}

TEST(CompletionRequests, AcceptValuesUpToTheirBounds) {
  EXPECT_EQ(parse_completion_request(R"({"prompt": "a", "top_k": -1})").top_k, 0)
      << "disabled, as other servers spell it";
  EXPECT_EQ(parse_completion_request(R"({"prompt": "a", "presence_penalty": -2})").presence_penalty, -2);
  EXPECT_THAT(completion_error(R"("presence_penalty": -2.5)"), HasSubstr("presence_penalty is -2.5"));
  EXPECT_THAT(completion_error(R"("frequency_penalty": -2.5)"), HasSubstr("frequency_penalty is -2.5"));
  EXPECT_THAT(completion_error(R"("min_p": 1.5)"), HasSubstr("min_p is 1.5"));
  EXPECT_THAT(completion_error(R"("min_p": -0.5)"), HasSubstr("min_p is -0.5"));
  nlohmann::json body = {{"prompt", std::vector<std::string>(serve::kMostPrompts, "a")}};
  EXPECT_EQ(parse_completion_request(body.dump()).prompts.size(), static_cast<size_t>(serve::kMostPrompts));
  body["prompt"].push_back("a");
  EXPECT_THAT(message_of<ApiError>([&] { parse_completion_request(body.dump()); }), HasSubstr("must have 1 to 1024"));
  for (const char* name : {"n", "best_of"}) {
    EXPECT_EQ(parse_completion_request(cat(R"({"prompt": "a", ")", name, R"(": 128})")).best_of, 128);
    EXPECT_THAT(completion_error(cat('"', name, R"(": 129)")), HasSubstr("an integer from 1 to 128"));
  }
  EXPECT_THAT(completion_error(R"("logprobs": 21)"), HasSubstr("an integer from 0 to 20"));
  nlohmann::json biased = {{"prompt", "a"}};
  for (int64_t token = 0; token < serve::kMostBiases; ++token) biased["logit_bias"][std::to_string(token)] = 1;
  EXPECT_EQ(parse_completion_request(biased.dump()).logit_bias.size(), 1024u);
  biased["logit_bias"]["1024"] = 1;
  EXPECT_THAT(message_of<ApiError>([&] { parse_completion_request(biased.dump()); }),
              HasSubstr("it has 1025 tokens, but at most 1024 are allowed"));
}

TEST(CompletionRequests, LimitNesting) {
  const auto nested = [](size_t lists) {
    return cat(R"({"prompt": "a", "metadata": )", std::string(lists, '['), std::string(lists, ']'), "}");
  };
  EXPECT_EQ(parse_completion_request(nested(31)).prompts.size(), 1u);  // plus the body's object
  EXPECT_THAT(message_of<ApiError>([&] { parse_completion_request(nested(32)); }), HasSubstr("32"));
}

TEST(Requests, DetermineTheBeginningOfThePrompt) {
  const std::string messages = R"({"messages": [{"role": "user", "content": "a"}])";
  EXPECT_TRUE(parse_completion_request(R"({"prompt": "a"})").add_special_tokens);
  EXPECT_FALSE(parse_completion_request(R"({"prompt": "a", "add_special_tokens": false})").add_special_tokens);
  EXPECT_FALSE(parse_chat_request(messages + "}").add_special_tokens);
  EXPECT_TRUE(parse_chat_request(messages + R"(, "add_special_tokens": true})").add_special_tokens);
  EXPECT_THAT(completion_error(R"("add_special_tokens": 1)"), HasSubstr("must be true or false"));
}

TEST(CompletionRequests, RefuseFieldsThatWouldBeIgnored) {
  EXPECT_THAT(completion_error(R"("suffix": "end")"), HasSubstr("suffix"));
  EXPECT_THAT(completion_error(R"("best_of": 3, "stream": true)"), HasSubstr("best_of = 3 cannot be streamed"));
  EXPECT_THAT(completion_error(R"("typical_p": 0.1)"), HasSubstr("unknown member of the request: typical_p"));
  EXPECT_THAT(completion_error(R"("stream": true, "echo": true, "logprobs": 1)"), HasSubstr("cannot be streamed"));
}

TEST(ChatRequests, JoinTextParts) {
  const auto request = parse_chat_request(
      R"({"messages": [{"role": "user", "name": "me", "content": [{"type": "text", "text": "a"},
          {"type": "text", "text": "b"}]}], "max_tokens": 3, "max_completion_tokens": 4, "logprobs": true,
          "tools": [], "tool_choice": "none", "response_format": {"type": "text"}})");
  EXPECT_EQ(request.messages[0].json, R"({"role": "user", "name": "me", "content": "ab"})");
  EXPECT_EQ(request.max_tokens, 4) << "the newer field name";
  EXPECT_EQ(request.top_logprobs, 0);
}

TEST(ChatRequests, ErrorsNameTheInvalidMessage) {
  EXPECT_THAT(chat_error(""), HasSubstr("has no messages"));
  EXPECT_THAT(chat_error(R"("messages": [])"), HasSubstr("at least one message"));
  EXPECT_THAT(chat_error(R"("messages": [{"role": "user", "content": "a"}, {"content": "b"}])"),
              HasSubstr("messages[1] must be an object with a role"));
  EXPECT_THAT(chat_error(R"("messages": [{"role": "user"}])"), HasSubstr("messages[0].content must be a string"));
  EXPECT_THAT(chat_error(R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])"),
              HasSubstr("messages[0].content"));
  EXPECT_THAT(chat_error(R"("messages": [{"role": "user", "content": "a"}], "top_logprobs": 2)"),
              HasSubstr("top_logprobs needs logprobs"));
  EXPECT_THAT(
      chat_error(R"("messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"})"),
      HasSubstr("answers are plain text"));
}

serve::ChatRequest chat_of(const std::string& members) {
  return parse_chat_request(R"({"messages": [{"role": "user", "content": "a"}])" + members + "}");
}

// A template writes tools unchanged, so keys keep the order of the request.
TEST(ChatRequests, KeepTheOrderOfTools) {
  const std::string tool =
      R"({"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{"b":{},"a":{}}}}})";
  const auto request = chat_of(R"(, "tools": [)" + tool + R"(], "tool_choice": "auto", "parallel_tool_calls": true)");
  EXPECT_EQ(nlohmann::ordered_json::parse(request.tools).dump(), "[" + tool + "]");
  EXPECT_EQ(request.tool_names, std::set<std::string>{"look"});
  EXPECT_TRUE(request.speaks_of_tools);
  const auto none = chat_of(R"(, "tools": [)" + tool + R"(], "tool_choice": "none")");
  EXPECT_EQ(none.tools, "");
  EXPECT_FALSE(none.speaks_of_tools);
}

TEST(ChatRequests, ParseArgumentsOfToolCalls) {
  const auto request = parse_chat_request(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": [2]}"}}]},
          {"role": "tool", "tool_call_id": "1", "content": "ok"}]})");
  EXPECT_EQ(request.messages[1].json,
            R"({"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": )"
            R"({"name": "f", "arguments": {"z": 1, "a": [2]}}}]})");
  EXPECT_EQ(request.messages[2].json, R"({"role": "tool", "tool_call_id": "1", "content": "ok"})");
  EXPECT_TRUE(request.speaks_of_tools);
}

TEST(ChatRequests, ErrorsNameInvalidTools) {
  const auto tools_error = [](const std::string& members) {
    return message_of<ApiError>([&] { chat_of(", " + members); });
  };
  const std::string good = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_THAT(tools_error(R"("tools": {})"), HasSubstr("tools must be a list"));
  EXPECT_THAT(tools_error(R"("tools": [{"type": "function"}])"), HasSubstr("tools[0] must be"));
  EXPECT_THAT(tools_error(R"("tools": [{"type": "custom", "function": {"name": "f"}}])"), HasSubstr("tools[0]"));
  EXPECT_THAT(tools_error(R"("tools": [{"type": "function", "function": {"name": "f", "strict": true}}])"),
              HasSubstr("tools[0].function.strict is not supported"));
  EXPECT_THAT(tools_error(good + R"(, "tool_choice": "required")"), HasSubstr("tool_choice = \"required\""));
  EXPECT_THAT(tools_error(good + R"(, "parallel_tool_calls": false)"), HasSubstr("parallel_tool_calls = false"));
  EXPECT_THAT(tools_error(R"("functions": [{"name": "f"}])"), HasSubstr("use tools"));
  const std::string arguments[] = {"[1]", "{", std::string(100, '[')};
  for (const std::string& bad : arguments) {
    const auto call = nlohmann::json{{"function", {{"name", "f"}, {"arguments", bad}}}};
    const auto message = nlohmann::json{{"role", "assistant"}, {"tool_calls", nlohmann::json::array({call})}};
    EXPECT_THAT(chat_error(R"("messages": [)" + message.dump() + "]"), HasSubstr("messages[0].tool_calls")) << bad;
  }
}

TEST(ChatRequests, SetTemplateVariables) {
  EXPECT_EQ(chat_of(R"(, "chat_template_kwargs": {"enable_thinking": false})").template_variables,
            R"({"enable_thinking": false})");
  EXPECT_EQ(chat_of("").template_variables, "");
  EXPECT_THAT(message_of<ApiError>([] { chat_of(R"(, "chat_template_kwargs": [1])"); }),
              HasSubstr("must be an object"));
  EXPECT_THAT(message_of<ApiError>([] { chat_of(R"(, "chat_template_kwargs": {"messages": []})"); }),
              HasSubstr("chat_template_kwargs must not set messages"));
}

TEST(ApiErrors, AreReadableJson) {
  const auto error = nlohmann::json::parse(ApiError(404, "no \"m\" \xff", "model", "model_not_found").body())["error"];
  EXPECT_EQ(error["message"], "no \"m\" \xef\xbf\xbd");
  EXPECT_EQ(error["type"], "not_found_error");
  EXPECT_EQ(error["param"], "model");
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(nlohmann::json::parse(ApiError(400, "bad").body())["error"]["param"], nullptr);
}

TEST(CompletionRequests, LimitTheNumberOfStopStrings) {
  const auto parse = [](int64_t count) {
    return parse_completion_request(
        nlohmann::json{{"prompt", "a"}, {"stop", std::vector<std::string>(static_cast<size_t>(count), "x")}}.dump());
  };
  EXPECT_EQ(parse(serve::kMostStops).stop.size(), 16u);
  EXPECT_THAT(message_of<ApiError>([&] { parse(serve::kMostStops + 1); }),
              HasSubstr("stop has 17 strings, but at most 16"));
}

}  // namespace
}  // namespace witan
