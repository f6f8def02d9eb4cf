// witan generate: text from a trained model.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>

#include "witan/base/text.h"
#include "witan/cli/commands.h"
#include "witan/cli/input.h"
#include "witan/cli/options.h"
#include "witan/cli/run_args.h"
#include "witan/generate/generator.h"
#include "witan/tokenizer/streaming_decoder.h"
#include "witan/train/run/load_run.h"
#include "witan/train/run/run_routes.h"

namespace witan::cli {
namespace {

struct GenerateArgs {
  RunArgs run;
  std::string prompt;
  GenerateOptions options;
  std::string record_routes;  // a folder; empty: none
  bool greedy = false, verbose = false;
};

constexpr double kTemperature = 0.7;

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  auto tokens = tokenizer.encode(prompt);
  if (!tokens.empty()) return tokens;
  // What follows an end of text is the beginning of another.
  const auto end_of_text = tokenizer.end_of_text();
  require<UsageError>(end_of_text.has_value(),
                      "witan generate: this run's tokenizer has no end-of-text token to start from: give a prompt");
  return {*end_of_text};
}

// Who records routes reads them after each layer.
GenerationMode mode_of(const GenerateArgs& args) {
  return {.recorded = args.record_routes.empty()};
}

// The last token generated has been sampled, but not been read by the model: it has no route, unless an end of text
// came after it.
void write_generation(RouteLog& routes, const GenerateArgs& args, std::vector<int32_t> prompt,
                      const std::vector<int32_t>& generated) {
  prompt.insert(prompt.end(), generated.begin(), generated.end());
  prompt.resize(static_cast<size_t>(routes.tokens()));
  routes.write(args.record_routes, RouteFile::Kind::generation, 1, 1, std::move(prompt));
}

// The text, as it comes; returns the number of tokens.
int64_t write_text(Context& context, const GenerateArgs& args, const TrainedRun& run, TrainedModel& model,
                   const std::vector<int32_t>& prompt) {
  StreamingDecoder decoder(*run.tokenizer);
  fmt::print(context.out, "{}", args.prompt);
  std::fflush(context.out);
  GenerateOptions options = args.options;
  options.end_of_text = run.tokenizer->end_of_text();
  options.vocab_size = run.tokenizer->vocab_size();
  std::optional<RouteLog> routes;
  if (!args.record_routes.empty()) routes.emplace(model.model());
  const auto tokens = generate(
      model.stream(), model.model(), prompt, options,
      [&](int32_t token) {
        fmt::print(context.out, "{}", decoder.push(token));
        std::fflush(context.out);
      },
      mode_of(args));
  fmt::print(context.out, "{}\n", decoder.flush());
  if (routes && routes->tokens() > 0) write_generation(*routes, args, prompt, tokens);
  return static_cast<int64_t>(tokens.size());
}

// A model has never seen positions beyond the samples that it learned from.
void warn_of_length(Context& context, const GenerateArgs& args, const TrainedRun& run, size_t prompt_tokens) {
  const int64_t trained = run.config->data.seq_length;
  const int64_t wanted = static_cast<int64_t>(prompt_tokens) + args.options.max_tokens;
  if (wanted > trained)
    fmt::print(context.err,
               "warning: the output may reach {} tokens, but the model was trained on {} (seq_length): later text may "
               "be incoherent\n",
               wanted, trained);
}

ExitCode generate_text(Context& context, GenerateArgs& args) {
  if (args.greedy) args.options.sampler.temperature = 0;
  const Sampler checked(args.options.sampler);  // before the work of loading
  if (args.prompt == "-") args.prompt = read_all(context.in);

  const TrainedRun run = open_run(args.run.runs_folder, args.run.run);
  for (const std::string& warning : run.warnings) fmt::print(context.err, "warning: {}\n", warning);
  const auto prompt = encode_prompt(*run.tokenizer, args.prompt);
  warn_of_length(context, args, run, prompt.size());
  const auto dry_run = [&](Stream& stream, Transformer& meta) {
    generate(stream, meta, prompt, args.options, {}, mode_of(args));  // without an end of text: all tokens
  };
  TrainedModel model(run, resolved_threads(args.run), dry_run, device_named(args.run.device));

  const auto start = std::chrono::steady_clock::now();
  const int64_t tokens = write_text(context, args, run, model, prompt);
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
  args->options.sampler.temperature = kTemperature;
  CLI::App* command =
      add_command(app, context,
                  {"generate", "Continue a prompt with a trained model",
                   "Prints the prompt and, token by token, its continuation. The same command gives the same text.",
                   "witan generate \"The \"\n"
                   "witan generate \"Perl is\" --run default --max-tokens 400 --temperature 0.9 --top-p 0.95 --seed 7\n"
                   "witan generate \"The \" --record-routes routes\n"
                   "witan generate - --greedy < prompt.txt > continued.txt"},
                  [&context, args] { return generate_text(context, *args); });
  add_option(*command, "prompt", args->prompt,
             "Text to continue; `-` reads it from standard input; empty: start a new text");
  add_run_args(*command, args->run);
  add_option(*command, "--max-tokens", args->options.max_tokens,
             "Generate at most N tokens; an end-of-text token ends the text earlier")
      .type_name("N")
      .range(int64_t{0}, int64_t{1} << 24)
      .show_default();
  SamplerOptions& sampler = args->options.sampler;
  const Option temperature =
      add_option(*command, "--temperature", sampler.temperature, "Sampling temperature (0: greedy decoding)")
          .type_name("T")
          .show_default();
  add_option(*command, "--top-k", sampler.top_k, "Sample from the K most likely tokens (0: all)")
      .type_name("K")
      .show_default();
  add_option(*command, "--top-p", sampler.top_p,
             "Sample from the smallest set of tokens with total probability P (nucleus sampling)")
      .type_name("P")
      .show_default();
  add_option(*command, "--seed", sampler.seed, "Random seed of sampling").type_name("N").show_default();
  add_option(*command, "--record-routes", args->record_routes,
             "Record which experts each token visits in this folder, for `witan train --replay-routes`")
      .type_name("FOLDER");
  add_flag(*command, "--greedy", args->greedy, "Always take the most likely token").excludes(temperature);
  add_flag(*command, "--verbose", args->verbose, "Print the speed even when stderr is not a terminal");
  add_device(*command, args->run);
  add_threads(*command, args->run);
}

}  // namespace witan::cli
