#include "witan/serve/service.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/serve/access.h"
#include "witan/serve/answer.h"

namespace witan::serve {
namespace {

constexpr const char* kModels = "/v1/models";
constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kHealth = "/health";
constexpr int64_t kCompletionTokens = 16;           // OpenAI's default of max_tokens
constexpr int64_t kMostSequences = 1024;            // prompts times choices
constexpr uint64_t kNextSeed = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio, to spread seeds

// Browsers let pages of other sites send forms and plain text to this server, but not this type.
void check_type(const HttpRequest& request) {
  const std::string type = request.content_type.substr(0, request.content_type.find(';'));
  if (type != "application/json") throw ApiError(415, "the request's Content-Type must be application/json");
}

// The token after the case-insensitive scheme (RFC 9110, section 11.1); empty for any other scheme.
std::string_view bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view scheme = authorization.substr(0, kScheme.size());
  const bool is_bearer =
      std::ranges::equal(scheme, kScheme, {}, [](char c) { return c >= 'A' && c <= 'Z' ? char(c + ('a' - 'A')) : c; });
  if (!is_bearer) return {};
  authorization.remove_prefix(kScheme.size());
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' '), authorization.size()));
  return authorization;
}

HttpResponse not_allowed(const HttpRequest& request, const char* allowed) {
  const ApiError error(405, cat(request.path, " takes ", allowed, ", not ", clipped(request.method)));
  return {.status = 405, .body = error.body(), .allow = allowed};
}

}  // namespace

Service::Service(ServedModel model, ServiceOptions options)
    : model_(std::move(model)),
      options_(std::move(options)),
      started_(std::time(nullptr)),
      seeds_((uint64_t{std::random_device{}()} << 32) | std::random_device{}()),
      queue_(model_.make_engine, options_.waiting, model_.most_tokens) {}

std::optional<HttpResponse> Service::answer_head(const HttpRequest& head) const {
  try {
    return route(head);
  } catch (const ApiError& error) {
    return HttpResponse{error.status(), error.body()};
  }
}

std::optional<HttpResponse> Service::route(const HttpRequest& head) const {
  const bool get = head.method == "GET" || head.method == "HEAD", post = head.method == "POST";
  const std::string& path = head.path;
  if (path == kHealth) return get ? health() : not_allowed(head, "GET, HEAD");
  check_access(head);
  const std::string below_models = std::string(kModels) + "/";
  if (path == kModels) return get ? models() : not_allowed(head, "GET, HEAD");
  if (path.starts_with(below_models))
    return get ? model(path.substr(below_models.size())) : not_allowed(head, "GET, HEAD");
  if (path != kCompletions && path != kChat)
    throw ApiError(404, cat("there is no ", clipped(path), ": this server has ", kHealth, ", ", kModels, ", ",
                            kCompletions, " and ", kChat));
  if (!post) return not_allowed(head, "POST");
  check_type(head);
  if (refusing_) throw ApiError(503, "the server is stopping");
  return {};
}

void Service::handle(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
  try {
    if (refusing_) throw ApiError(503, "the server is stopping");
    if (request.path == kChat)
      chat(request, reply);
    else
      complete(request, reply);
  } catch (const ApiError& error) {
    reply->send({error.status(), error.body()});
  } catch (const DataError& error) {  // the tokenizer or the chat template refuses this text
    reply->send({400, ApiError(400, error.what()).body()});
  }
}

void Service::stop() {
  refuse_new();
  queue_.stop();
}

void Service::check_access(const HttpRequest& head) const {
  if (options_.api_key.empty()) {
    if (const auto why = foreign_request(head, options_.host))
      throw ApiError(403, cat(*why, ": start it with an API key (WITAN_API_KEY) to allow this"));
    return;
  }
  if (!same_secret(bearer_token(head.authorization), options_.api_key))
    throw ApiError(401, "this server needs its API key, as in \"Authorization: Bearer KEY\"", {}, "invalid_api_key");
}

void Service::check_model(const std::string& name) const {
  if (!name.empty() && name != model_.name)
    throw ApiError(404, cat("there is no model ", clipped(name), ": this server has ", model_.name), "model",
                   "model_not_found");
}

HttpResponse Service::health() const {
  if (refusing_) return {503, ApiError(503, "the server is stopping").body()};
  return {200, R"({"status":"ok"})"};
}

HttpResponse Service::models() const {
  nlohmann::json list = nlohmann::json::object();
  list["object"] = "list";
  list["data"] = nlohmann::json::array();
  list["data"].push_back(nlohmann::json::parse(model(model_.name).body));
  return {200, list.dump()};
}

HttpResponse Service::model(const std::string& name) const {
  check_model(name);
  nlohmann::json json = nlohmann::json::object();
  json["id"] = model_.name;
  json["object"] = "model";
  json["created"] = started_;
  json["owned_by"] = "witan";
  json["max_model_len"] = model_.most_tokens;
  return {200, json.dump()};
}

void Service::refuse_long(const char* member) const {
  throw ApiError(400, cat("the prompt has more than the ", model_.most_tokens, " tokens that this server has room for"),
                 member, "context_length_exceeded");
}

std::vector<int32_t> Service::encode(const CompletionRequest::Prompt& prompt, bool add_special_tokens) const {
  const Tokenizer& tokenizer = model_.tokenizer;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    if (!tokenizer.fits(*text, model_.most_tokens, true)) refuse_long("prompt");
    // lm-eval begins texts with "<|endoftext|>" or the like.
    auto tokens = add_special_tokens ? tokenizer.encode_prompt(*text, true) : tokenizer.encode(*text, true);
    // Generation without a prompt starts after an end of text.
    if (tokens.empty() && tokenizer.end_of_text()) tokens.push_back(*tokenizer.end_of_text());
    if (tokens.empty()) throw ApiError(400, "the prompt has no tokens", "prompt", "invalid_value");
    return tokens;
  }
  const auto& tokens = std::get<std::vector<int32_t>>(prompt);
  const auto bad = std::ranges::find_if(tokens, [&](int32_t id) { return id >= tokenizer.vocab_size(); });
  if (bad != tokens.end())
    throw ApiError(400, cat("prompt: there is no token ", *bad, ": the model has ", tokenizer.vocab_size()), "prompt",
                   "invalid_value");
  return tokens;
}

int64_t Service::tokens_to_generate(const SamplingRequest& request, int64_t prompt_tokens, int64_t otherwise) const {
  const int64_t left = model_.most_tokens - prompt_tokens;
  if (left < request.max_tokens.value_or(1))
    throw ApiError(400,
                   cat("a prompt of ", prompt_tokens, " tokens and max_tokens = ", request.max_tokens.value_or(1),
                       " are more than the ", model_.most_tokens, " tokens that this server has room for"),
                   "max_tokens", "context_length_exceeded");
  return request.max_tokens.value_or(std::min(left, otherwise));
}

uint64_t Service::seed_of(const SamplingRequest& request) {
  return request.seed ? *request.seed : seeds_.fetch_add(kNextSeed);
}

GenerationRequest Service::generation(const SamplingRequest& request, std::vector<int32_t> prompt,
                                      int64_t max_tokens) const {
  const GenerationConfig& defaults = model_.defaults;
  GenerationRequest out;
  out.prompt = std::move(prompt);
  out.options.max_tokens = max_tokens;
  out.options.vocab_size = model_.tokenizer.vocab_size();
  out.options.end_of_text = model_.tokenizer.end_of_text();
  out.options.stop_tokens = defaults.stop_tokens;
  SamplerOptions& sampler = out.options.sampler;
  sampler.temperature = request.temperature.value_or(defaults.temperature.value_or(1));
  sampler.top_k = request.top_k.value_or(defaults.top_k.value_or(0));
  sampler.top_p = request.top_p.value_or(defaults.top_p.value_or(1));
  sampler.min_p = request.min_p.value_or(defaults.min_p.value_or(0));
  sampler.repetition_penalty = request.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1));
  sampler.presence_penalty = request.presence_penalty;
  sampler.frequency_penalty = request.frequency_penalty;
  sampler.logit_bias = request.logit_bias;
  if (const auto last = request.logit_bias.rbegin();
      last != request.logit_bias.rend() && last->first >= model_.tokenizer.vocab_size())
    throw ApiError(
        400, cat("logit_bias: there is no token ", last->first, ": the model has ", model_.tokenizer.vocab_size()),
        "logit_bias", "invalid_value");
  out.top_logprobs = std::min(request.top_logprobs, model_.tokenizer.vocab_size());
  if (request.best_of > request.n) out.top_logprobs = std::max<int64_t>(out.top_logprobs, 0);  // for the comparison
  return out;
}

namespace {

// Gives each choice of a prompt its own seed; the first draws as it would alone.
void add_choices(std::vector<ChoiceStart>& starts, ChoiceStart start, int64_t n, uint64_t seed) {
  for (int64_t choice = 0; choice < n; ++choice) {
    start.request.options.sampler.seed = seed + static_cast<uint64_t>(choice) * kNextSeed;
    starts.push_back(start);
  }
}

void submit(GenerationQueue& queue, const std::shared_ptr<Answer>& answer) {
  if (!queue.submit(answer->sequences()))
    throw ApiError(429, "too many requests are waiting: try again later", {}, "queue_full");
}

}  // namespace

void Service::complete(const HttpRequest& http, const std::shared_ptr<Reply>& reply) {
  const CompletionRequest request = parse_completion_request(http.body);
  check_model(request.model);
  if (static_cast<int64_t>(request.prompts.size()) * request.best_of > kMostSequences)
    throw ApiError(400,
                   cat(request.prompts.size(), " prompts with ", request.best_of > request.n ? "best_of = " : "n = ",
                       request.best_of, " are more than the ", kMostSequences, " sequences that a request may have"),
                   request.best_of > request.n ? "best_of" : "n", "invalid_value");
  std::vector<ChoiceStart> starts;
  int64_t prompt_tokens = 0;
  const uint64_t seed = seed_of(request);
  for (const auto& prompt : request.prompts) {
    auto tokens = encode(prompt, request.add_special_tokens);
    const auto count = static_cast<int64_t>(tokens.size());
    prompt_tokens += count;
    ChoiceStart start;
    if (request.echo) {
      const auto* text = std::get_if<std::string>(&prompt);
      start.echo = replace_invalid_utf8(text ? *text : model_.tokenizer.decode(tokens));
    }
    start.request = generation(request, std::move(tokens), tokens_to_generate(request, count, kCompletionTokens));
    start.request.prompt_logprobs = request.echo && request.top_logprobs >= 0;
    add_choices(starts, std::move(start), request.best_of, seed);
  }
  submit(queue_,
         std::make_shared<Answer>(AnswerKind::completion, request, model_, reply, std::move(starts), prompt_tokens));
}

void Service::chat(const HttpRequest& http, const std::shared_ptr<Reply>& reply) {
  const ChatRequest request = parse_chat_request(http.body);
  check_model(request.model);
  if (!model_.encode_chat) throw ApiError(400, model_.no_chat, "messages", "no_chat_template");
  if (request.speaks_of_tools && !model_.tool_format)
    throw ApiError(
        400,
        "this model's chat template has no tools, or writes calls in a form that this server cannot read: it reads "
        "<tool_call> with JSON (Hermes, Qwen) and Llama 3's JSON",
        "tools", "unsupported_value");
  auto encoded = model_.encode_chat(request, model_.most_tokens);
  if (!encoded) refuse_long("messages");
  auto& tokens = *encoded;
  // In addition to what the template writes, so only on request.
  const std::vector<int32_t>& before = model_.tokenizer.spec().before;
  if (request.add_special_tokens) tokens.insert(tokens.begin(), before.begin(), before.end());
  if (tokens.empty()) throw ApiError(400, "the messages have no tokens", "messages", "invalid_value");
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t otherwise = model_.defaults.max_new_tokens.value_or(model_.most_tokens);
  ChoiceStart start;
  start.request = generation(request, std::move(tokens), tokens_to_generate(request, count, otherwise));
  std::vector<ChoiceStart> starts;
  add_choices(starts, std::move(start), request.n, seed_of(request));
  submit(queue_, std::make_shared<Answer>(AnswerKind::chat, request, model_, reply, std::move(starts), count,
                                          request.tool_names));
}

}  // namespace witan::serve
