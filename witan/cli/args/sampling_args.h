// Flags that say how tokens are drawn and when a text ends, for the commands that generate.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/generate/generation_batch.h"
#include "witan/generate/input_files.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {

class SamplingArgs {
 public:
  SamplingArgs();
  // --max-tokens, --temperature, --greedy, --top-k, --top-p, --min-p, --repetition-penalty, --presence-penalty,
  // --frequency-penalty, --seed, --stop.
  void add(CLI::App& command);

  // The options that the flags set, otherwise those of the model's authors. The tokenizer encodes stop strings. Throws
  // ConfigError for invalid values.
  GenerateOptions resolve(const GenerationConfig& authors, const Tokenizer& tokenizer) const;
  // Throws ConfigError or UsageError for invalid flags, before a model is loaded.
  void check() const;

  // The texts of --stop, with \n, \r, \t and \\ as what they stand for; a backslash before anything else is one.
  std::vector<std::string> stops() const;

 private:
  SamplerOptions sampler() const;

  GenerateOptions options_;
  std::vector<std::string> stops_;  // as they were given
  bool greedy_ = false;
  std::optional<Option> max_tokens_, temperature_, top_k_, top_p_, min_p_, repetition_penalty_;
};

// The sampling options of the model's authors, from the folder that the run was imported from. Warns on `err` about
// options that Witan lacks.
GenerationConfig generation_config_of(std::FILE* err, const TrainedRun& run);

// --kv-cache-dtype and --cache-mla-latents.
void add_cache_args(CLI::App& command, CacheOptions& options);

// How texts are computed: with the bits of training if --deterministic is given or the run was trained so.
GenerationMode generation_mode(const RunArgs& args, const TrainedRun& run, const CacheOptions& cache = {});

// The longest text, in tokens, that the run's model was trained on or made for.
int64_t context_of(const TrainedRun& run);

// Warns if texts may have more tokens than those that the model was trained on; `what` is the subject: "the output".
void warn_of_length(std::FILE* err, const TrainedRun& run, const std::string& what, int64_t tokens);
// Resolves --context, the tokens of a text that memory is reserved for; 0 means context_of(), but at most `most`. Warns
// as above. Throws UsageError if the model has fewer learned positions.
int64_t resolve_context(std::FILE* err, const TrainedRun& run, int64_t context, int64_t most);

}  // namespace witan::cli
