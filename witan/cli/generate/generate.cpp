// witan generate: text from a trained model.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/sampling_args.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/generate/line_input.h"
#include "witan/generate/input_files.h"
#include "witan/generate/request.h"
#include "witan/generate/text_stream.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/loop/run_routes.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

// Quotes the text as in JSON, with line breaks and quotes escaped.
std::string quoted(const Tokenizer& tokenizer, int32_t id) {
  return nlohmann::json(replace_invalid_utf8(tokenizer.token_bytes(id))).dump();
}

// One line of JSON: {"prompt", "text", "tokens", "logprobs", "top_logprobs", "finish_reason"}. "text" follows the
// prompt; "tokens" are all generated tokens, including those of a stop string. Log probabilities are present if they
// were asked for: those of the tokens, and [[token, log probability], …] of the most likely ones.
std::string generation_json(const std::string& prompt, const std::string& text, const Generation& generation,
                            bool stopped) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  json["prompt"] = replace_invalid_utf8(prompt);
  json["text"] = text;
  json["tokens"] = nlohmann::ordered_json::array();
  for (const GeneratedToken& token : generation.tokens) {
    json["tokens"].push_back(token.token);
    if (!token.logprob) continue;
    json["logprobs"].push_back(*token.logprob);
    if (token.top.empty()) continue;
    nlohmann::ordered_json likely = nlohmann::ordered_json::array();
    for (const TokenLogprob& other : token.top) {
      nlohmann::ordered_json pair = nlohmann::ordered_json::array();
      pair.push_back(other.token);
      pair.push_back(other.logprob);
      likely.push_back(std::move(pair));
    }
    json["top_logprobs"].push_back(std::move(likely));
  }
  json["finish_reason"] = stopped || generation.finish == Finish::stop ? "stop" : "length";
  return json.dump();
}

// A line for each token: its log probability, the token, and the most likely tokens in its place.
std::string logprob_table(const Tokenizer& tokenizer, const std::vector<GeneratedToken>& tokens) {
  std::string table;
  for (const GeneratedToken& token : tokens) {
    table += fmt::format("{:>9.4f}  {}", token.logprob.value_or(0), quoted(tokenizer, token.token));
    for (const TokenLogprob& likely : token.top)
      table += fmt::format("  {:.4f} {}", likely.logprob, quoted(tokenizer, likely.token));
    table += "\n";
  }
  return table;
}

struct PromptArgs {
  std::vector<std::string> texts;
  std::string file;
};

void add_prompt_args(CLI::App& command, PromptArgs& args) {
  add_option(command, "texts", args.texts,
             "Texts to continue; `-` reads one from standard input; none: start a new text")
      .type_name("TEXT");
  add_option(command, "--prompts", args.file, "Continue each line of FILE; of a .jsonl file, each line's \"prompt\"")
      .type_name("FILE");
}

// The prompts, at least one: the empty prompt if `args` has none. A file has a prompt in each line that is not empty; a
// .jsonl file has JSON strings, or objects with a "prompt". Throws IoError, and DataError or CorruptionError naming the
// line.
std::vector<std::string> read_prompts(const PromptArgs& args, std::FILE* in) {
  std::vector<std::string> prompts = args.texts;
  for (std::string& prompt : prompts)
    if (prompt == "-") prompt = read_all(in);
  if (!args.file.empty()) {
    const auto more = read_prompt_file(args.file);
    prompts.insert(prompts.end(), more.begin(), more.end());
  }
  if (prompts.empty()) prompts.emplace_back();
  return prompts;
}

// An empty prompt is encoded as the end-of-text token, after which a new text begins. Throws UsageError if the
// tokenizer has no such token.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  auto tokens = tokenizer.encode_prompt(prompt);
  if (!tokens.empty()) return tokens;
  const auto end_of_text = tokenizer.end_of_text();
  require<UsageError>(end_of_text.has_value(),
                      "witan generate: this run's tokenizer has no end-of-text token to start from: give a prompt");
  return {*end_of_text};
}

struct GenerateArgs {
  RunArgs run;
  CacheOptions cache;
  PromptArgs prompts;
  SamplingArgs sampling;
  std::string record_routes;  // a folder; empty: none
  int64_t logprobs = -1;      // most likely tokens to print with each token; -1: no log probabilities
  bool json = false, verbose = false;
};

// Routes are read after each layer, so steps that record them cannot be CUDA graphs.
GenerationMode mode_of(const GenerateArgs& args, const TrainedRun& run) {
  GenerationMode mode = generation_mode(args.run, run, args.cache);
  mode.recorded = mode.recorded && args.record_routes.empty();
  return mode;
}

// The model has not read the last generated token, which therefore has no route, unless an end of text followed it.
void write_generation(RouteLog& routes, const GenerateArgs& args, std::vector<int32_t> tokens,
                      const std::vector<GeneratedToken>& generated) {
  for (const GeneratedToken& token : generated) tokens.push_back(token.token);
  tokens.resize(static_cast<size_t>(routes.tokens()));
  routes.write(args.record_routes, RouteFile::Kind::generation, 1, 1, std::move(tokens));
}

std::vector<GenerationRequest> make_requests(std::FILE* err, const GenerateArgs& args, const TrainedRun& run,
                                             const std::vector<std::string>& prompts) {
  std::vector<GenerationRequest> requests;
  const GenerateOptions options = args.sampling.resolve(generation_config_of(err, run), *run.tokenizer);
  for (const std::string& prompt : prompts)
    requests.push_back(
        {encode_prompt(*run.tokenizer, prompt), options, std::min(args.logprobs, run.tokenizer->vocab_size()), false});
  return requests;
}

// Prints the texts in the order of their prompts; the first one token by token, unless JSON is printed.
class Texts {
 public:
  Texts(Context& context, const GenerateArgs& args, const TrainedRun& run, const std::vector<std::string>& prompts)
      : context_(context), args_(args), tokenizer_(*run.tokenizer), prompts_(prompts), texts_(prompts.size()) {
    for (size_t i = 0; i < prompts.size(); ++i) streams_.emplace_back(*run.tokenizer, args.sampling.stops());
    if (!args_.json) print(prompts_[0]);
  }

  // Adds a token. Returns whether the text continues.
  bool push(size_t index, const GeneratedToken& token) {
    add(index, streams_[index].push(token.token));
    return !streams_[index].stopped();
  }
  void end(const std::vector<Generation>& generations) {
    for (size_t i = 0; i < generations.size(); ++i) {
      add(i, streams_[i].flush());
      const bool stopped = streams_[i].stopped();
      if (args_.json) {
        print(generation_json(prompts_[i], texts_[i], generations[i], stopped) + "\n");
        continue;
      }
      if (i > 0) print(prompts_[i] + texts_[i]);
      print("\n");
      if (args_.logprobs >= 0) print(logprob_table(tokenizer_, generations[i].tokens));
    }
  }

 private:
  void add(size_t index, const std::string& text) {
    texts_[index] += text;
    if (index == 0 && !args_.json) print(text);
  }
  void print(const std::string& text) const {
    fmt::print(context_.out, "{}", text);
    std::fflush(context_.out);
  }

  Context& context_;
  const GenerateArgs& args_;
  const Tokenizer& tokenizer_;
  const std::vector<std::string>& prompts_;
  std::vector<std::string> texts_;
  std::vector<TextStream> streams_;
};

// Generates and prints the texts. Returns the number of tokens.
int64_t write_texts(Context& context, const GenerateArgs& args, const TrainedRun& run, TrainedModel& model,
                    const std::vector<std::string>& prompts, const std::vector<GenerationRequest>& requests) {
  Texts texts(context, args, run, prompts);
  std::optional<RouteLog> routes;
  if (!args.record_routes.empty()) routes.emplace(model.model());
  const auto generations = generate(
      model.stream(), model.model(), requests,
      [&](size_t index, const GeneratedToken& token) { return texts.push(index, token); }, mode_of(args, run));
  texts.end(generations);
  if (routes && routes->tokens() > 0) write_generation(*routes, args, requests[0].prompt, generations[0].tokens);
  int64_t tokens = 0;
  for (const Generation& generation : generations) tokens += static_cast<int64_t>(generation.tokens.size());
  return tokens;
}

int64_t longest_text(const std::vector<GenerationRequest>& requests) {
  int64_t tokens = 0;
  for (const GenerationRequest& request : requests)
    tokens = std::max(tokens, static_cast<int64_t>(request.prompt.size()) + request.options.max_tokens);
  return tokens;
}

ExitCode generate_text(Context& context, const GenerateArgs& args) {
  args.sampling.check();  // before the work of loading
  const auto prompts = read_prompts(args.prompts, context.in);
  require<UsageError>(args.record_routes.empty() || prompts.size() == 1, "witan generate: --record-routes takes one ",
                      "prompt, not ", prompts.size());
  const TrainedRun run = open_selected_run(context.err, args.run);
  const auto requests = make_requests(context.err, args, run, prompts);
  warn_of_length(context.err, run, "the output", longest_text(requests));
  const auto dry_run = [&](Stream& stream, Transformer& meta) {
    generate(stream, meta, requests, {}, mode_of(args, run));  // without an end of text: all tokens
  };
  TrainedModel model(run, resolved_threads(args.run), dry_run, device_named(args.run.device));

  const auto start = std::chrono::steady_clock::now();
  const int64_t tokens = write_texts(context, args, run, model, prompts, requests);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (args.verbose || ::isatty(::fileno(context.err)))
    fmt::print(context.err, "\n{} tokens in {}, {:.1f} tokens/s; run {}, step {}\n", tokens, format_duration(seconds),
               static_cast<double>(tokens) / std::max(seconds, 1e-9), run.folder.filename().string(),
               run.checkpoint.step);
  return ExitCode::done;
}

}  // namespace

void add_generate(CLI::App& app, Context& context) {
  const auto args = std::make_shared<GenerateArgs>();
  CLI::App* command = add_command(
      app, context,
      {"generate", "Continue prompts with a trained model",
       "Prints each prompt and its continuation, the first token by token. The same command gives the same text, and a "
       "prompt the same text with others as alone. Unless flags say otherwise, an imported model is sampled as its "
       "generation_config.json says.",
       "witan generate \"The \"\n"
       "witan generate \"Perl is\" --run default --max-tokens 400 --temperature 0.9 --top-p 0.95 --seed 7\n"
       "witan generate \"The king\" \"The ship\" --stop . --repetition-penalty 1.1\n"
       "witan generate --prompts prompt.txt --json --logprobs 2 > continued.jsonl\n"
       "witan generate \"The \" --record-routes routes\n"
       "witan generate - --greedy < prompt.txt > continued.txt"},
      [&context, args] { return generate_text(context, *args); });
  add_prompt_args(*command, args->prompts);
  add_run_args(*command, args->run);
  args->sampling.add(*command);
  add_option(*command, "--logprobs", args->logprobs,
             "Print each token's log probability, and those of the N most likely ones (default: 0; a text after it is "
             "a prompt)")
      .type_name("[N]")
      .range(int64_t{0}, int64_t{1000})
      .optional_value();
  add_flag(*command, "--json", args->json,
           "Print one JSON object per prompt: prompt, text, tokens, logprobs, finish_reason");
  add_option(*command, "--record-routes", args->record_routes,
             "Record which experts each token visits in this folder, for `witan train --replay-routes`")
      .type_name("FOLDER");
  add_flag(*command, "--verbose", args->verbose, "Print the speed even when stderr is not a terminal");
  add_cache_args(*command, args->cache);
  add_device(*command, args->run);
  add_threads(*command, args->run);
}

}  // namespace witan::cli
