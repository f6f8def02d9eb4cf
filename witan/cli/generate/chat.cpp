// witan chat: a conversation with a trained model.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "witan/base/files/file.h"
#include "witan/base/files/output_file.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/sampling_args.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/generate/chat_format.h"
#include "witan/cli/generate/line_input.h"
#include "witan/generate/text_stream.h"
#include "witan/train/signals/signals.h"

namespace witan::cli {
namespace {

struct ChatArgs {
  RunArgs run;
  CacheOptions cache;
  SamplingArgs sampling;
  std::string system, chat_template;
  bool content_special_tokens = false;
  int64_t context = 0;  // 0: the model's, up to kContext
};

constexpr int64_t kContext = 8192;
constexpr std::string_view kEnd = "]}\n";  // the end of a saved conversation
constexpr const char* kHelp =
    "/reset          forget the conversation\n"
    "/system TEXT    start over with these instructions; without TEXT: with none\n"
    "/save FILE      write the conversation as a line of JSON, as fine-tuning reads it; to a new file or an "
    "earlier save\n"
    "/help           these commands\n"
    "/quit           end (so does Ctrl-D); Ctrl-C ends an answer\n";

class Conversation {
 public:
  Conversation(Context& context, const ChatArgs& args, const ChatFormat& format, TrainedModel& model,
               GenerateOptions options, const Tokenizer& tokenizer, int64_t most_tokens, GenerationMode mode)
      : context_(context),
        format_(format),
        options_(std::move(options)),
        stops_(args.sampling.stops()),
        tokenizer_(tokenizer),
        most_tokens_(most_tokens),
        batch_(model.stream(), model.model(), {1, most_tokens}, mode) {
    begin(args.system);
  }

  // Whether there was a question without an answer.
  bool unanswered() const { return unanswered_; }

  // Handles a line of input. False if it ends the conversation.
  bool take(const std::string& line) {
    if (line.starts_with('/')) return command(line);
    if (line.find_first_not_of(" \t") != std::string::npos) ask(line);
    return true;
  }

 private:
  void begin(const std::string& system) {
    messages_.clear();
    system_ = system;
    if (!system.empty()) messages_.push_back({"system", system});
  }

  bool command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/quit") return false;
    if (name == "/reset") {
      begin(system_);
    } else if (name == "/system") {
      begin(rest);
    } else if (name == "/save") {
      save(rest);
    } else {
      if (name != "/help") fmt::print(context_.err, "there is no command {}:\n", clipped(name));
      fmt::print(context_.err, "{}", kHelp);
    }
    return true;
  }

  // Saves the conversation; prints errors, which do not end it.
  void save(const std::string& file) const {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const ChatMessage& message : messages_) {
      nlohmann::ordered_json entry = nlohmann::ordered_json::object();
      entry["role"] = message.role;
      entry["content"] = replace_invalid_utf8(message.content);
      list.push_back(std::move(entry));
    }
    const std::string text = cat("{\"messages\":", list.dump(), "}\n");  // ends with kEnd
    try {
      require<UsageError>(!file.empty(), "/save needs the name of a file");
      // The file may be replaced if it is an earlier save of this conversation.
      const auto is_beginning = [&](std::string_view saved) {
        return saved.ends_with(kEnd) && text.starts_with(saved.substr(0, saved.size() - kEnd.size()));
      };
      OutputFile{file, "/save", "beginning of this conversation", is_beginning}.write(text);
      fmt::print(context_.err, "saved {} in {}\n", counted(messages_.size(), "message"), file);
    } catch (const Error& error) {
      fmt::print(context_.err, "{}\n", error.what());
    }
  }

  // Answers a question. It is dropped if the template refuses it or the context is full.
  void ask(const std::string& question) {
    messages_.push_back({"user", replace_invalid_utf8(question)});
    try {
      const std::string answer = generate_answer(format_.encode(messages_));
      messages_.push_back({"assistant", answer});
    } catch (const DataError& error) {
      messages_.pop_back();
      unanswered_ = true;
      fmt::print(context_.err, "{}\n", error.what());
    }
  }

  std::string generate_answer(std::vector<int32_t> tokens) {
    const int64_t left = most_tokens_ - static_cast<int64_t>(tokens.size());
    require<DataError>(left > 0, "the conversation has ", tokens.size(), " tokens, and there is room for ",
                       most_tokens_, ": /reset forgets it, --context gives more room");
    GenerationRequest request{std::move(tokens), options_};
    request.options.max_tokens = std::min(left, options_.max_tokens);
    TextStream text(tokenizer_, stops_);
    std::string answer;
    const auto show = [&](const std::string& piece) {
      answer += piece;
      fmt::print(context_.out, "{}", piece);
      std::fflush(context_.out);
    };
    const StopSignals signals(StopSignals::Answer::stop, StopSignals::Voice::silent);
    const auto on_token = [&](size_t, const GeneratedToken& token) {
      show(text.push(token.token));
      return !text.stopped() && !StopSignals::requested();
    };
    batch_.admit(std::move(request));
    while (!batch_.idle()) batch_.step(on_token);
    batch_.take_finished();
    show(text.flush());
    fmt::print(context_.out, "\n");
    std::fflush(context_.out);
    return answer;
  }

  Context& context_;
  const ChatFormat& format_;
  GenerateOptions options_;
  std::vector<std::string> stops_;
  const Tokenizer& tokenizer_;
  int64_t most_tokens_;
  GenerationBatch batch_;  // of one text, so that the next question reuses the conversation's keys and values
  bool unanswered_ = false;
  std::string system_;
  std::vector<ChatMessage> messages_;
};

// A dry run of the longest prompt and the longest text, which need the most memory.
void plan_for(Stream& stream, Transformer& meta, int64_t most_tokens, GenerationMode mode) {
  const int64_t prompt = std::max<int64_t>(1, most_tokens - 2);  // a step of one token follows
  GenerationRequest longest{std::vector<int32_t>(static_cast<size_t>(prompt), 0), {}};
  longest.options.max_tokens = most_tokens - prompt;
  generate(stream, meta, std::span(&longest, 1), {}, mode);
}

ExitCode chat(Context& context, const ChatArgs& args) {
  args.sampling.check();
  const TrainedRun run = open_selected_run(context.err, args.run);
  const auto format = ChatFormat::open(run, args.chat_template, args.content_special_tokens);
  if (!format) throw UsageError(ChatFormat::missing(run));
  const int64_t most_tokens = resolve_context(context.err, run, args.context, kContext);
  GenerateOptions options = args.sampling.resolve(generation_config_of(context.err, run), *run.tokenizer);
  format->add_stop_tokens(options.stop_tokens);
  const GenerationMode mode = generation_mode(args.run, run, args.cache);
  const auto dry_run = [&](Stream& stream, Transformer& meta) { plan_for(stream, meta, most_tokens, mode); };
  TrainedModel model(run, resolved_threads(args.run), dry_run, device_named(args.run.device));
  Conversation conversation(context, args, *format, model, options, *run.tokenizer, most_tokens, mode);
  LineInput lines(context.in, context.out, context.err, "witan");
  if (lines.is_terminal())
    fmt::print(context.err, "run {}, step {}; /help lists commands, Ctrl-D ends\n", run.folder.filename().string(),
               run.checkpoint.step);
  while (const auto line = lines.next("> "))
    if (!conversation.take(*line)) break;
  // A user at a terminal has seen the error; a script needs the exit code.
  return conversation.unanswered() && !lines.is_terminal() ? ExitCode::data : ExitCode::done;
}

}  // namespace

void add_chat(CLI::App& app, Context& context) {
  const auto args = std::make_shared<ChatArgs>();
  CLI::App* command =
      add_command(app, context,
                  {"chat", "Talk with a trained model",
                   "Reads a line, prints the model's answer as it comes, and so on, with the chat template that came "
                   "with the model or that --chat-template gives. /help lists the commands in a conversation; Ctrl-C "
                   "ends an answer, Ctrl-D the conversation.",
                   "witan chat --run tuned\n"
                   "witan chat --run tuned --system \"Answer in one sentence.\" --temperature 0.3\n"
                   "witan chat --run tuned --chat-template chat_template.jinja < questions.txt > answers.txt"},
                  [&context, args] { return chat(context, *args); });
  add_run_args(*command, args->run);
  add_option(*command, "--system", args->system, "Instructions before the conversation").type_name("TEXT");
  add_option(*command, "--chat-template", args->chat_template,
             "A template in Jinja, or a JSON file with one, instead of the run's")
      .type_name("FILE");
  add_flag(*command, "--content-special-tokens", args->content_special_tokens, kContentSpecialTokensHelp);
  add_option(*command, "--context", args->context,
             "Longest conversation in tokens (0: the model's context, at most 8192)")
      .type_name("N")
      .range(int64_t{0}, int64_t{1} << 24)
      .show_default();
  args->sampling.add(*command);
  add_cache_args(*command, args->cache);
  add_device(*command, args->run);
  add_threads(*command, args->run);
}

}  // namespace witan::cli
