#include "witan/cli/planning.h"

#include "witan/base/threads.h"
#include "witan/cli/machine.h"

namespace witan::cli {

CeilingsFile ceilings_file() {
  return {ceilings_path(), machine_identity()};
}

Plan plan_of(const RunConfig& config, const Tokenizer* tokenizer) {
  PlanOptions options;
  if (tokenizer) options.prompt_tokens = static_cast<int64_t>(tokenizer->encode(config.train.sample_prompt).size());
  return make_plan(config, options);
}

Timing timing_of(const Plan& plan, const RunConfig& config, int64_t done) {
  const CeilingsFile file = ceilings_file();
  const Load load = load_of(config, usable_cores());
  Timing timing;
  if (auto kept = file.find(load)) {
    timing.ceilings = *std::move(kept);
    timing.source = "kept in " + file.path().string();
  } else {
    timing.ceilings = file.get(load);
    timing.source = "measured now";
  }
  timing.step = predict_step(plan, config, timing.ceilings);
  timing.steps = std::max<int64_t>(config.train.train_iters - done, 0);
  timing.run_seconds = predict_run(timing.step, config, done);
  return timing;
}

std::optional<Tokenizer> run_tokenizer(const RunConfig& config) {
  const fs::path path = fs::path(config.train.runs_folder) / config.train.run / "tokenizer.json";
  return fs::exists(path) ? std::optional(Tokenizer::load(path)) : std::nullopt;
}

int64_t expected_vocabulary(const DataConfig& config) {
  return config.tokenizer.empty() ? config.bpe.vocab_size : Tokenizer::load(config.tokenizer).vocab_size();
}

}  // namespace witan::cli
