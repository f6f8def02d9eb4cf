#include "witan/serve/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/serve/api_error.h"

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

// As OpenAI's Python client and lm-eval send it.
TEST(CompletionRequests, HaveWhatClientsSend) {
  const auto request = parse_completion_request(
      R"({"model": "m", "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0, "top_p": 0.5, "n": 2, "seed": -3,
          "stop": "x", "echo": true, "logprobs": 1, "stream": false, "user": "me", "frequency_penalty": 0.0,
          "presence_penalty": 0, "logit_bias": {}, "suffix": null, "best_of": 2, "top_k": 40,
          "repetition_penalty": 1.1})");
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
  EXPECT_EQ(request.repetition_penalty, 1.1);
}

TEST(CompletionRequests, LeaveOpenWhatTheyDoNotSay) {
  const auto request = parse_completion_request(R"({"prompt": [1, 2, 3], "stop": null, "temperature": null})");
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompts.at(0)), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.temperature, std::nullopt);
  EXPECT_EQ(request.seed, std::nullopt);
  EXPECT_EQ(request.top_logprobs, -1);
  EXPECT_EQ(request.n, 1);
  EXPECT_TRUE(request.stop.empty());
}

TEST(CompletionRequests, NameTheMemberThatIsWrong) {
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
  EXPECT_THAT(message_of<ApiError>([] { parse_completion_request("{}"); }), HasSubstr("has no prompt"));
  for (const char* prompt : {"3", "[]", "[[]]", "[[1], 2.5]", "[1, \"a\"]", "[\"a\", {}]", "[-1]", "[4294967296]"})
    EXPECT_THAT(message_of<ApiError>([&] { parse_completion_request(std::string("{\"prompt\": ") + prompt + "}"); }),
                HasSubstr("prompt"));
}

TEST(CompletionRequests, AreRefusedWhereTheAnswerWouldDisregardThem) {
  EXPECT_THAT(completion_error(R"("presence_penalty": 0.5)"), HasSubstr("presence_penalty = 0.5 is not supported"));
  EXPECT_THAT(completion_error(R"("logit_bias": {"5": 1})"), HasSubstr("logit_bias"));
  EXPECT_THAT(completion_error(R"("suffix": "end")"), HasSubstr("suffix"));
  EXPECT_THAT(completion_error(R"("best_of": 3)"), HasSubstr("best_of = 3"));
  EXPECT_THAT(completion_error(R"("min_p": 0.1)"), HasSubstr("unknown member of the request: min_p"));
  EXPECT_THAT(completion_error(R"("stream": true, "echo": true, "logprobs": 1)"), HasSubstr("cannot be streamed"));
}

TEST(ChatRequests, JoinTheirPartsOfText) {
  const auto request = parse_chat_request(
      R"({"messages": [{"role": "user", "name": "me", "content": [{"type": "text", "text": "a"},
          {"type": "text", "text": "b"}]}], "max_tokens": 3, "max_completion_tokens": 4, "logprobs": true,
          "tools": [], "tool_choice": "none", "response_format": {"type": "text"}})");
  EXPECT_EQ(request.messages[0]["content"], "ab");
  EXPECT_EQ(request.messages[0]["name"], "me");
  EXPECT_EQ(request.max_tokens, 4) << "the newer name";
  EXPECT_EQ(request.top_logprobs, 0);
}

TEST(ChatRequests, NameTheMessageThatIsWrong) {
  EXPECT_THAT(chat_error(""), HasSubstr("has no messages"));
  EXPECT_THAT(chat_error(R"("messages": [])"), HasSubstr("at least one message"));
  EXPECT_THAT(chat_error(R"("messages": [{"role": "user", "content": "a"}, {"content": "b"}])"),
              HasSubstr("messages[1] must be an object with a role"));
  EXPECT_THAT(chat_error(R"("messages": [{"role": "user"}])"), HasSubstr("messages[0].content must be a string"));
  EXPECT_THAT(chat_error(R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])"),
              HasSubstr("messages[0].content"));
  EXPECT_THAT(chat_error(R"("messages": [{"role": "user", "content": "a"}], "top_logprobs": 2)"),
              HasSubstr("top_logprobs needs logprobs"));
  EXPECT_THAT(chat_error(R"("messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}])"),
              HasSubstr("calls no tools"));
  EXPECT_THAT(
      chat_error(R"("messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"})"),
      HasSubstr("answers are plain text"));
}

TEST(ApiErrors, AreJsonThatClientsRead) {
  const auto error = nlohmann::json::parse(ApiError(404, "no \"m\" \xff", "model", "model_not_found").body())["error"];
  EXPECT_EQ(error["message"], "no \"m\" \xef\xbf\xbd");
  EXPECT_EQ(error["type"], "not_found_error");
  EXPECT_EQ(error["param"], "model");
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(nlohmann::json::parse(ApiError(400, "bad").body())["error"]["param"], nullptr);
}

TEST(CompletionRequests, MayHaveAsManyStopStringsAsAreAllowedAndNoMore) {
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
