// Flags that say how tokens are drawn and when a text ends, for the commands that generate.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/generate/generation_config.h"
#include "witan/generate/generator.h"
#include "witan/train/run/load_run.h"

namespace witan::cli {

class SamplingArgs {
 public:
  SamplingArgs();
  // --max-tokens, --temperature, --greedy, --top-k, --top-p, --min-p, --repetition-penalty, --presence-penalty,
  // --frequency-penalty, --seed, --stop.
  void add(CLI::App& command);

  // What the flags say and, where they say nothing, the model's authors; of a text by this tokenizer. Throws
  // ConfigError for values that cannot be.
  GenerateOptions resolve(const GenerationConfig& authors, const Tokenizer& tokenizer) const;
  // Throws ConfigError or UsageError for flags that cannot be, before there is a model.
  void check() const;

  std::vector<std::string> stops;

 private:
  SamplerOptions sampler() const;

  GenerateOptions options_;
  bool greedy_ = false;
  std::optional<Option> max_tokens_, temperature_, top_k_, top_p_, min_p_, repetition_penalty_;
};

// What the authors of a run's model sample with: of the folder that it was imported from. Warns on `err` of what they
// do that Witan does not.
GenerationConfig generation_config_of(std::FILE* err, const TrainedRun& run);

// How its texts are computed: with the bits of training where that is asked for, or was deterministic.
GenerationMode generation_mode(const RunArgs& args, const TrainedRun& run);

// The longest text that the run's model has learned from or was made for.
int64_t context_of(const TrainedRun& run);

// Says so where texts may have more tokens than those that the model was trained on; `what` may have them.
void warn_of_length(std::FILE* err, const TrainedRun& run, const std::string& what, int64_t tokens);
// --context: tokens of a text for which there is to be room, or of 0 what context_of() says, up to `most`. Warns as
// above. Throws UsageError for more than the positions that the model has learned.
int64_t resolve_context(std::FILE* err, const TrainedRun& run, int64_t context, int64_t most);

}  // namespace witan::cli
