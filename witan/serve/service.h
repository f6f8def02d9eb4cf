// The endpoints of an OpenAI-compatible server: finds the one that a request means, reads it, and queues what it asks
// for. Knows no sockets.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "witan/serve/generation_queue.h"
#include "witan/serve/http_server.h"
#include "witan/serve/request.h"
#include "witan/serve/request_members.h"
#include "witan/serve/served_model.h"

namespace witan::serve {

struct ServiceOptions {
  // Key that requests must send as "Authorization: Bearer KEY". Empty: no key, but requests of web pages are refused
  // (access.h), and `host` is the name that the server listens at.
  std::string api_key = {}, host = {};
  int64_t waiting = 256;  // most sequences that wait
};

class Service {
 public:
  Service(ServedModel model, ServiceOptions options);

  // Answers requests that need no body, or refuses them. Thread-safe, like handle().
  std::optional<HttpResponse> answer_head(const HttpRequest& head) const;
  // Handles requests that answer_head() has accepted: answers them, or queues sequences that will.
  void handle(const HttpRequest& request, const std::shared_ptr<Reply>& reply);
  // Answers /health and new generation requests with 503 from now on; queued ones continue.
  void refuse_new() { refusing_ = true; }
  // The number of sequences that wait for room in the batch.
  int64_t waiting() const { return queue_.waiting(); }
  // Ends all remaining requests without an answer.
  void stop();

 private:
  std::optional<HttpResponse> route(const HttpRequest& head) const;
  void check_access(const HttpRequest& head) const;
  void check_model(const std::string& name) const;
  HttpResponse health() const;
  HttpResponse models() const;
  HttpResponse model(const std::string& name) const;
  void complete(const HttpRequest& request, const std::shared_ptr<Reply>& reply);
  void chat(const HttpRequest& request, const std::shared_ptr<Reply>& reply);

  [[noreturn]] void refuse_long(const char* member) const;  // for a prompt that was not tokenized completely
  std::vector<int32_t> encode(const CompletionRequest::Prompt& prompt, bool add_special_tokens) const;
  GenerationRequest generation(const SamplingRequest& request, std::vector<int32_t> prompt, int64_t max_tokens) const;
  int64_t tokens_to_generate(const SamplingRequest& request, int64_t prompt_tokens, int64_t otherwise) const;
  uint64_t seed_of(const SamplingRequest& request);

  const ServedModel model_;
  const ServiceOptions options_;
  const int64_t started_;  // seconds since 1970
  std::atomic<uint64_t> seeds_;
  std::atomic<bool> refusing_ = false;
  GenerationQueue queue_;  // last: its thread uses the rest
};

}  // namespace witan::serve
