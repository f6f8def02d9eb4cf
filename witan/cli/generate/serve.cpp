// witan serve: a trained model behind an OpenAI-compatible endpoint.
#include <fmt/core.h>

#include <cstdlib>
#include <thread>

#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/sampling_args.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/generate/chat_format.h"
#include "witan/generate/generation_batch.h"
#include "witan/serve/service.h"
#include "witan/train/signals/signals.h"

namespace witan::cli {
namespace {

struct ServeArgs {
  RunArgs run;
  CacheOptions cache;
  std::string host = "127.0.0.1", name, chat_template;
  bool content_special_tokens = false;
  int port = 8000;
  int64_t batch = 8, context = 0, waiting = 256, connections = 256;
  double request_time = 600, stop_time = 30;  // seconds
};

constexpr int64_t kServedContext = 4096;
constexpr int64_t kMostTexts = 4096;  // the dry run before the start has a step with all of them
constexpr const char* kKeyVariable = "WITAN_API_KEY";

// The model as the service's queue uses it.
class ServedBatch : public serve::BatchEngine {
 public:
  ServedBatch(Stream& stream, Transformer& model, StateSize size, GenerationMode mode)
      : batch_(stream, model, size, mode) {}
  bool has_room() const override { return batch_.has_room(); }
  size_t admit(GenerationRequest request) override { return batch_.admit(std::move(request)); }
  void step(const OnToken& on_token) override { batch_.step(on_token); }
  bool idle() const override { return batch_.idle(); }
  std::vector<std::pair<size_t, Generation>> take_finished() override { return batch_.take_finished(); }

 private:
  GenerationBatch batch_;
};

std::string api_key(const ServeArgs& args) {
  const char* key = std::getenv(kKeyVariable);
  if (key && *key) return key;
  require<UsageError>(serve::is_loopback(args.host), "--host ", args.host,
                      " lets others reach this server, and whoever does could use the model: set ", kKeyVariable,
                      " to a secret that clients must send as their API key (not a flag, which every user of this "
                      "machine could read in the list of processes)");
  return "";
}

// A dry run of the steps that need the most memory, with all log probabilities: one prompt of full length beside texts
// that continue, and new prompts for all texts at once, together as long as the queue admits in one step.
void plan_batches(Stream& stream, Transformer& meta, StateSize size, GenerationMode mode) {
  for (const int64_t prompts : {int64_t{1}, size.rows}) {
    GenerationBatch batch(stream, meta, size, mode);
    GenerationRequest request;
    request.prompt.assign(static_cast<size_t>(std::max<int64_t>(1, (size.positions - 2) / prompts)), 0);
    request.options.max_tokens = std::min<int64_t>(2, size.positions - 1);  // the second tokens are one step
    request.top_logprobs = 1;
    request.prompt_logprobs = true;
    GenerationRequest short_one = request;
    short_one.prompt.resize(1);
    short_one.options.max_tokens = std::min<int64_t>(4, size.positions - 1);
    for (int64_t row = prompts; row < size.rows; ++row) batch.admit(short_one);
    if (!batch.idle()) batch.step();
    for (int64_t row = 0; row < prompts; ++row) batch.admit(request);
    while (!batch.idle()) batch.step();
    batch.rehearse();
  }
}

std::vector<ChatMessage> messages_of(const nlohmann::ordered_json& messages) {
  std::vector<ChatMessage> list;
  for (const auto& message : messages) list.push_back({.role = {}, .content = {}, .json = message.dump()});
  return list;
}

std::string json_text(const nlohmann::ordered_json& value) {
  return value.is_null() ? std::string() : value.dump();
}

serve::ServedModel describe(std::FILE* err, const ServeArgs& args, const TrainedRun& run, StateSize size,
                            const std::optional<ChatFormat>& format) {
  serve::ServedModel served{.name = args.name.empty() ? run.folder.filename().string() : args.name,
                            .tokenizer = *run.tokenizer,
                            .encode_chat = {},
                            .no_chat = ChatFormat::missing(run),
                            .tool_format = {},
                            .defaults = generation_config_of(err, run),
                            .most_tokens = size.positions,
                            .make_engine = {}};
  if (!format) return served;
  format->add_stop_tokens(served.defaults.stop_tokens);
  served.tool_format = serve::find_tool_format(
      [&](const auto& messages, const auto& tools) { return format->render(messages_of(messages), json_text(tools)); });
  served.encode_chat = [format = *format](const serve::ChatRequest& request, int64_t most_tokens) {
    return format.encode_within(most_tokens, request.messages, request.tools, request.template_variables);
  };
  return served;
}

void wait_while(const std::function<bool()>& condition) {
  while (condition()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// Serves until a signal arrives, then until all requests are answered or --stop-timeout has passed.
void serve_until_stopped(Context& context, const ServeArgs& args, serve::Service& service,
                         const serve::HttpServer& server) {
  const StopSignals signals(StopSignals::Answer::stop, StopSignals::Voice::silent);
  fmt::print(context.err, "listening at http://{}:{} (Ctrl-C stops)\n", args.host, server.port());
  std::fflush(context.err);
  wait_while([] { return !StopSignals::requested(); });
  service.refuse_new();
  if (const int64_t left = server.busy(); left > 0)
    fmt::print(context.err, "stopping: answering {} ({} waiting), for at most {}; Ctrl-C again quits at once\n",
               counted(left, "request"), counted(service.waiting(), "text"), format_duration(args.stop_time));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(args.stop_time);
  wait_while([&] { return server.busy() > 0 && std::chrono::steady_clock::now() < end; });
  const int64_t cancelled = server.busy();
  fmt::print(context.err, "stopped{}\n", cancelled > 0 ? cat("; cancelled ", counted(cancelled, "request")) : "");
}

ExitCode serve_model(Context& context, const ServeArgs& args) {
  const std::string key = api_key(args);  // before the work of loading
  const TrainedRun run = open_selected_run(context.err, args.run);
  const auto format = ChatFormat::open(run, args.chat_template, args.content_special_tokens);
  const StateSize size{args.batch, resolve_context(context.err, run, args.context, kServedContext)};
  const GenerationMode mode = generation_mode(args.run, run, args.cache);
  const auto dry_run = [&](Stream& stream, Transformer& meta) { plan_batches(stream, meta, size, mode); };
  TrainedModel model(run, resolved_threads(args.run), dry_run, device_named(args.run.device));
  serve::ServedModel served = describe(context.err, args, run, size, format);
  served.make_engine = [&model, size, mode] {
    return std::make_unique<ServedBatch>(model.stream(), model.model(), size, mode);
  };
  fmt::print(context.err, "model {}: run {}, step {}; {} texts of {} tokens at a time{}\n", served.name,
             run.folder.filename().string(), run.checkpoint.step, size.rows, size.positions,
             served.encode_chat ? "" : "; no chat template: /v1/completions alone");

  serve::Service service(std::move(served), {.api_key = key, .host = args.host, .waiting = args.waiting});
  serve::HttpLimits limits;
  limits.connections = args.connections;
  limits.answer = serve::HttpLimits::Seconds(args.request_time);
  const serve::HttpServer server(
      args.host, args.port, limits,
      [&](const serve::HttpRequest& request, const auto& reply) { service.handle(request, reply); },
      [](int status, const std::string& message) { return serve::ApiError(status, message).body(); },
      [&](const serve::HttpRequest& head) { return service.answer_head(head); });
  serve_until_stopped(context, args, service, server);
  service.stop();  // before the server, which the remaining answers still use
  return ExitCode::done;
}

void add_limits(CLI::App& command, ServeArgs& args) {
  const auto add = [&](const char* name, int64_t& value, int64_t least, const char* help,
                       int64_t most = int64_t{1} << 24) {
    return add_option(command, name, value, help).type_name("N").range(least, most).show_default();
  };
  add("--max-batch", args.batch, 1, "Texts that are computed at a time", kMostTexts);
  add("--context", args.context, 0, "Tokens of a text, its prompt included (0: the model's, at most 4096)");
  add("--max-waiting", args.waiting, 1, "Texts that may wait; more are refused with 429");
  add("--max-connections", args.connections, 1,
      "Connections at a time; a new one takes the place of the slowest, or is refused with 503 if all wait for "
      "answers");
  add_option(command, "--request-timeout", args.request_time, "Seconds that an answer may take; then 504")
      .type_name("S")
      .range(0.001, 1e6)
      .show_default();
  add_option(command, "--stop-timeout", args.stop_time, "Seconds that requests may still take after SIGINT or SIGTERM")
      .type_name("S")
      .range(0.0, 1e6)
      .show_default();
}

}  // namespace

void add_serve(CLI::App& app, Context& context) {
  const auto args = std::make_shared<ServeArgs>();
  CLI::App* command =
      add_command(app, context,
                  {"serve", "Serve a trained model to OpenAI's clients",
                   "Answers POST /v1/completions and /v1/chat/completions, GET /v1/models and /health. Requests that "
                   "come while others are computed join their batch. Only this machine can reach the server; --host "
                   "opens it to others, and needs an API key in the environment (WITAN_API_KEY).",
                   "witan serve --run tuned\n"
                   "witan serve --run tuned --port 8080 --name my-model --max-batch 16 --context 2048\n"
                   "witan serve --run tuned --chat-template chat_template.jinja"},
                  [&context, args] { return serve_model(context, *args); });
  add_run_args(*command, args->run);
  add_option(*command, "--host", args->host, "Name or address to listen at").type_name("HOST").show_default();
  add_option(*command, "--port", args->port, "Port to listen at (0: a free one)")
      .type_name("N")
      .range(0, 65535)
      .show_default();
  add_option(*command, "--name", args->name, "The model's name in requests (default: the run's)").type_name("NAME");
  add_option(*command, "--chat-template", args->chat_template,
             "A template in Jinja, or a JSON file with one, instead of the run's")
      .type_name("FILE");
  add_flag(*command, "--content-special-tokens", args->content_special_tokens, kContentSpecialTokensHelp);
  add_limits(*command, *args);
  add_cache_args(*command, args->cache);
  add_device(*command, args->run);
  add_threads(*command, args->run);
}

}  // namespace witan::cli
