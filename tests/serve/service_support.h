// Serves a parrot over HTTP on this machine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "serve/http_client.h"
#include "serve/parrot.h"
#include "witan/serve/service.h"

namespace witan::test {

inline const std::string kCompletions = "/v1/completions", kChat = "/v1/chat/completions";

class ServiceTest : public ::testing::Test {
 protected:
  void start(serve::ServiceOptions options = {}, serve::HttpLimits limits = {}, int64_t most_tokens = 1000) {
    start(served(parrot_, most_tokens), std::move(options), limits);
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
  HttpAnswer post(const std::string& path, const nlohmann::json& body) {
    return HttpClient(port()).post(path, body.dump());
  }
  nlohmann::json complete(const nlohmann::json& body) {
    const HttpAnswer answer = post(kCompletions, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  nlohmann::json chat(const nlohmann::json& body) {
    const HttpAnswer answer = post(kChat, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  void expect_refusal(const HttpAnswer& answer, int status, const std::string& piece) {
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_THAT(answer.error(), ::testing::HasSubstr(piece));
    EXPECT_TRUE(answer.json()["error"].contains("type"));
  }

  Parrot parrot_;
  std::unique_ptr<serve::Service> service_;
  std::unique_ptr<serve::HttpServer> server_;
};

}  // namespace witan::test
