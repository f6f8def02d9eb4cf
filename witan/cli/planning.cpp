#include "witan/cli/planning.h"

#include <algorithm>

#include "witan/base/threads.h"
#include "witan/cli/machine.h"
#include "witan/kernels/ceiling.h"

namespace witan::cli {
namespace {

constexpr double kUsualShare = 0.6;  // of the peak, over whole steps of the default recipe

int64_t steps_left(const RunConfig& config, int64_t done) {
  return std::max<int64_t>(config.train.train_iters - done, 0);
}

Timing timing_from(const Ceilings& ceilings, std::string source, const Plan& plan, const RunConfig& config,
                   int64_t done) {
  Timing timing;
  timing.ceilings = ceilings;
  timing.source = std::move(source);
  timing.step = predict_step(plan, config, ceilings);
  timing.steps = steps_left(config, done);
  timing.run_seconds = predict_run(timing.step, config, done);
  return timing;
}

std::string kept_in(const CeilingsFile& file) {
  return "kept in " + file.path().string();
}

}  // namespace

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
  if (auto kept = file.find(load)) return timing_from(*kept, kept_in(file), plan, config, done);
  return timing_from(file.get(load), "measured now", plan, config, done);
}

Timing quick_timing_of(const Plan& plan, const RunConfig& config, int64_t done) {
  const CeilingsFile file = ceilings_file();
  const Load load = load_of(config, usable_cores());
  if (auto kept = file.find(load)) return timing_from(*kept, kept_in(file), plan, config, done);
  ThreadPool pool(load.ranks * load.threads);
  Timing timing;
  timing.source = "the peak of multiply-adds";
  timing.ceilings.fma_flops = 1e9 * kernels::measure_fma_gflops(pool);
  timing.step.seconds = plan.step_flops / (kUsualShare * timing.ceilings.fma_flops);
  timing.steps = steps_left(config, done);
  timing.run_seconds = timing.step.seconds * static_cast<double>(timing.steps);
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
