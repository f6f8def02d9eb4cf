// witan generate: text from a trained model.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/sampling_args.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/commands.h"
#include "witan/cli/generate/generation_text.h"
#include "witan/cli/generate/prompts.h"
#include "witan/generate/text_stream.h"
#include "witan/train/run/load_run.h"
#include "witan/train/run/run_routes.h"

namespace witan::cli {
namespace {

struct GenerateArgs {
  RunArgs run;
  PromptArgs prompts;
  SamplingArgs sampling;
  std::string record_routes;  // a folder; empty: none
  int64_t logprobs = -1;      // -1: none; else the likeliest tokens beside each
  bool json = false, verbose = false;
};

// Who records routes reads them after each layer.
GenerationMode mode_of(const GenerateArgs& args, const TrainedRun& run) {
  GenerationMode mode = generation_mode(args.run, run);
  mode.recorded = mode.recorded && args.record_routes.empty();
  return mode;
}

// The last token generated has been sampled, but not been read by the model: it has no route, unless an end of text
// came after it.
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

// The texts in the order of their prompts; the first as it comes, where no more than that is printed of it.
class Texts {
 public:
  Texts(Context& context, const GenerateArgs& args, const TrainedRun& run, const std::vector<std::string>& prompts)
      : context_(context), args_(args), tokenizer_(*run.tokenizer), prompts_(prompts), texts_(prompts.size()) {
    for (size_t i = 0; i < prompts.size(); ++i) streams_.emplace_back(*run.tokenizer, args.sampling.stops);
    if (!args_.json) print(prompts_[0]);
  }

  // Whether the text goes on.
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

// Returns the number of tokens.
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
  const TrainedRun run = open_run(args.run.runs_folder, args.run.run);
  for (const std::string& warning : run.warnings) fmt::print(context.err, "warning: {}\n", warning);
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
       "prompt the same text beside others as alone. Where flags say nothing, a model that was imported is sampled as "
       "its generation_config.json says.",
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
             "Print each token's log probability, and those of the N most likely ones (default: 0; a text behind it is "
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
  add_device(*command, args->run);
  add_threads(*command, args->run);
}

}  // namespace witan::cli
