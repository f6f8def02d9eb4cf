// Requests that arrive, finish and are cancelled while others are computed.
#include "serve/service_support.h"

namespace witan::test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

TEST_F(ServiceTest, RequestsJoinAndLeaveTheBatch) {
  start();  // up to three sequences
  parrot_.hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (const int tokens : {3, 1, 1, 2}) {  // one after another
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->send(HttpClient::post_text(kCompletions, json{{"prompt", "ab"}, {"max_tokens", tokens}}.dump()));
    if (clients.size() == 1) parrot_.wait_for_steps(1);
    while (service_->waiting() < static_cast<int64_t>(clients.size()) - 1) std::this_thread::yield();
  }
  parrot_.release();
  for (const auto& client : clients) EXPECT_EQ(client->answer().status, 200);
  EXPECT_THAT(parrot_.steps(), ElementsAre(1, 3, 2, 1));
}

TEST_F(ServiceTest, DisconnectingCancelsARequest) {
  start();
  for (const char* stream : {"false", "true"}) {
    parrot_.hold();
    auto client = std::make_unique<HttpClient>(port());
    client->send(HttpClient::post_text(
        kCompletions, std::string(R"({"prompt": "ab", "max_tokens": 900, "stream": )") + stream + "}"));
    while (server_->busy() < 1) std::this_thread::yield();
    client.reset();
    while (server_->busy() > 0) std::this_thread::yield();  // until the server has noticed
    parrot_.release();
  }
  EXPECT_EQ(complete({{"prompt", "ab"}, {"max_tokens", 2}})["choices"][0]["text"], "ab");
}

TEST_F(ServiceTest, BreakingAStreamStopsTheModel) {
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

// The client disconnects after reading the beginning.
TEST_F(ServiceTest, DisconnectingWithinAStreamStopsTheModel) {
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
  EXPECT_EQ(complete({{"prompt", "ab"}, {"max_tokens", 2}})["choices"][0]["text"], "ab") << "the slot is free again";
}

TEST_F(ServiceTest, StoppingFinishesRunningRequestsAndRefusesNewOnes) {
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

TEST_F(ServiceTest, StoppingAtOnceEndsRunningRequests) {
  start();
  parrot_.hold();
  HttpClient client(port());
  client.send(HttpClient::post_text(kCompletions, R"({"prompt": "ab", "max_tokens": 900})"));
  parrot_.wait_for_steps(1);
  parrot_.release();
  service_->stop();
}

TEST_F(ServiceTest, LimitsPromptTokensPerStep) {
  start({}, {}, 10);
  complete({{"prompt", {"abcdef", "abcdef"}}, {"max_tokens", 2}});
  EXPECT_THAT(parrot_.steps(), ElementsAre(1, 2, 1)) << "the second prompt waits a step";
}

}  // namespace
}  // namespace witan::test
