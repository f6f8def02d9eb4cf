#include "witan/cli/args/sampling_args.h"

#include <fmt/core.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/convert/ledger.h"

namespace witan::cli {
namespace {

constexpr double kTemperature = 0.7;

}  // namespace

SamplingArgs::SamplingArgs() {
  options_.sampler.temperature = kTemperature;
}

void SamplingArgs::add(CLI::App& command) {
  SamplerOptions& sampler = options_.sampler;
  max_tokens_ = add_option(command, "--max-tokens", options_.max_tokens,
                           "Generate at most N tokens; an end-of-text token ends the text earlier")
                    .type_name("N")
                    .range(int64_t{0}, int64_t{1} << 24)
                    .show_default();
  temperature_ = add_option(command, "--temperature", sampler.temperature, "Sampling temperature (0: greedy decoding)")
                     .type_name("T")
                     .show_default();
  top_k_ = add_option(command, "--top-k", sampler.top_k, "Sample from the K most likely tokens (0: all)")
               .type_name("K")
               .show_default();
  top_p_ = add_option(command, "--top-p", sampler.top_p,
                      "Sample from the smallest set of tokens with total probability P (nucleus sampling)")
               .type_name("P")
               .show_default();
  min_p_ = add_option(command, "--min-p", sampler.min_p,
                      "Sample only from tokens that are at least P times as likely as the likeliest (0: all)")
               .type_name("P")
               .show_default();
  repetition_penalty_ =
      add_option(command, "--repetition-penalty", sampler.repetition_penalty,
                 "Make tokens of the text so far less likely: divide their logits by R if positive, otherwise multiply")
          .type_name("R")
          .show_default();
  add_option(command, "--presence-penalty", sampler.presence_penalty,
             "Lower the logits of tokens that the text has after its prompt by P (-2 to 2 are usual; OpenAI's)")
      .type_name("P")
      .show_default();
  add_option(command, "--frequency-penalty", sampler.frequency_penalty,
             "Lower them by F for each time that such a token occurs in the text")
      .type_name("F")
      .show_default();
  add_option(command, "--seed", sampler.seed, "Random seed of sampling").type_name("N").show_default();
  add_option(command, "--stop", stops_,
             "End the text before TEXT, in which \\n, \\t and \\\\ are a newline, a tab and a backslash (repeatable)")
      .type_name("TEXT")
      .one_argument();
  add_flag(command, "--greedy", greedy_, "Always take the most likely token").excludes(*temperature_);
}

std::vector<std::string> SamplingArgs::stops() const {
  constexpr std::string_view kLetters = "nrt\\", kMeant = "\n\r\t\\";
  std::vector<std::string> texts;
  for (const std::string& given : stops_) {
    std::string& text = texts.emplace_back();
    for (size_t i = 0; i < given.size(); ++i) {
      const bool escape = given[i] == '\\' && i + 1 < given.size();
      const size_t letter = escape ? kLetters.find(given[i + 1]) : kLetters.npos;
      text += letter == kLetters.npos ? given[i] : kMeant[letter];
      if (letter != kLetters.npos) ++i;
    }
  }
  return texts;
}

SamplerOptions SamplingArgs::sampler() const {
  SamplerOptions sampler = options_.sampler;
  if (greedy_) sampler.temperature = 0;
  return sampler;
}

void SamplingArgs::check() const {
  const Sampler checked(sampler());
  require<UsageError>(std::ranges::find(stops_, "") == stops_.end(),
                      "--stop: the text is empty, and would end every text before it begins; leave it out");
}

GenerateOptions SamplingArgs::resolve(const GenerationConfig& authors, const Tokenizer& tokenizer) const {
  GenerateOptions options = options_;
  options.sampler = sampler();
  const auto take = [](auto& value, const auto& theirs, const std::optional<Option>& flag) {
    if (theirs && !flag->given()) value = *theirs;
  };
  take(options.max_tokens, authors.max_new_tokens, max_tokens_);
  if (!greedy_) take(options.sampler.temperature, authors.temperature, temperature_);
  take(options.sampler.top_k, authors.top_k, top_k_);
  take(options.sampler.top_p, authors.top_p, top_p_);
  take(options.sampler.min_p, authors.min_p, min_p_);
  take(options.sampler.repetition_penalty, authors.repetition_penalty, repetition_penalty_);
  options.stop_tokens = authors.stop_tokens;
  options.end_of_text = tokenizer.end_of_text();
  options.vocab_size = tokenizer.vocab_size();
  const Sampler checked(options.sampler);
  return options;
}

GenerationConfig generation_config_of(std::FILE* err, const TrainedRun& run) {
  const fs::path file = run.folder / kCompanionFolder / "generation_config.json";
  GenerationConfig authors = read_generation_config(file);
  for (const std::string& value : authors.unsupported)
    fmt::print(err, "warning: {}: {} has no effect: tokens are drawn without it\n", file.string(), value);
  return authors;
}

void add_cache_args(CLI::App& command, CacheOptions& options) {
  for (const Field& field : options.fields())
    add_option(command, flag_name(field.name), *std::get<std::string*>(field.value), field.help)
        .one_of(field.choices)
        .show_default();
}

GenerationMode generation_mode(const RunArgs& args, const TrainedRun& run, const CacheOptions& cache) {
  return {
      .repeatable = args.deterministic || run.config->parallel.batch_invariant_mode, .recorded = true, .cache = cache};
}

int64_t context_of(const TrainedRun& run) {
  return std::max(run.config->data.seq_length, run.config->model.attention.max_position_embeddings);
}

// The model has never seen positions beyond the length of its training samples.
void warn_of_length(std::FILE* err, const TrainedRun& run, const std::string& what, int64_t tokens) {
  const int64_t trained = run.config->data.seq_length;
  if (tokens > trained)
    fmt::print(err,
               "warning: {} may reach {} tokens, but the model was trained on {} (seq_length): later text may be "
               "incoherent\n",
               what, tokens, trained);
}

int64_t resolve_context(std::FILE* err, const TrainedRun& run, int64_t context, int64_t most) {
  const AttentionConfig& attention = run.config->model.attention;
  const auto positions = attention.most_positions();
  require<UsageError>(!positions || context <= *positions, "--context ", context, " is more than ",
                      attention.most_positions_key(), " = ", positions.value_or(0), ", ",
                      attention.most_positions_reason(), "; give at most these");
  const int64_t tokens = context > 0 ? context : std::min(context_of(run), most);
  warn_of_length(err, run, "texts", tokens);
  return tokens;
}

}  // namespace witan::cli
