// The plan of a configuration on this machine, and the time that its run will take, for `plan` and `train`.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "witan/cli/train/job.h"
#include "witan/planner/pages/plan_page.h"
#include "witan/planner/speeds/ceilings_file.h"
#include "witan/planner/speeds/cluster.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {

// The file of ceilings measured with this machine and this build.
CeilingsFile ceilings_file();

// The plan of a configuration, for every rank. The tokenizer, if there is one, measures the prompts of samples.
Plan plan_of(const ResolvedConfig& config, const Tokenizer* tokenizer);
// Tokens of the longest prompt of a sample; nothing without a tokenizer.
std::optional<int64_t> prompt_tokens(const RunConfig& config, const Tokenizer* tokenizer);

// Bytes of memory that a run may use: the host's, or those of the GPU with the least; 0: unknown.
int64_t usable_memory(const ResolvedConfig& config);
int64_t usable_host_memory();
// Memory that a run may use on one GPU, on which this process opens a context.
int64_t usable_memory_of_gpu(int device);

// A warning if the run has more threads than there are cores. None if it has one thread per rank, since layouts are
// tried out with more ranks than cores.
std::optional<std::string> too_many_threads(const ParallelConfig& parallel, int cores);

// How long the plan's run takes from step `done` on. Measures the ceilings if none are stored. Nothing for GPUs that
// are not here.
std::optional<Timing> timing_of(const Plan& plan, const ResolvedConfig& config, int64_t done);

// How long the plan's run takes on a cluster that need not be here. Throws ConfigError as Cluster::ceilings() does.
Timing timing_on(const Cluster& cluster, const Plan& plan, const ResolvedConfig& config);

// The speeds that times of a start are predicted from.
struct Speeds {
  Ceilings ceilings;
  std::string source;  // where they come from, in words
};

// Speeds that do not hold up a start: those of a busy machine are not measured again, except for the peak of
// multiply-adds. If no ceilings are kept, they come from that peak, from the rate of copying, and from the shares of
// both that calls usually reach (typical_cpu_speeds()).
// `job`: what several processes on the CPU measured together; kept ceilings say nothing about them, since their cores
// are not those of this process.
Speeds quick_speeds(const ResolvedConfig& config, const std::optional<JobCeilings>& job);

// Quick speeds for a single process that must not write. Nothing if GPUs would have to be measured, since their
// ceilings are kept.
std::optional<Speeds> speeds_without_writing(const ResolvedConfig& config);

// How long the plan's run takes from step `done` on, at these speeds. `held_out`: samples of the held-out text; if it
// is not known, there are as many as evaluations ask for.
Timing timing_at(const Speeds& speeds, const Plan& plan, const ResolvedConfig& config, int64_t done,
                 std::optional<int64_t> held_out);

// The run of `steps` iterations instead of train_iters: warm-up, decay, and the intervals of evaluations, checkpoints
// and samples shrink in proportion, except for the keys that it `keeps`.
using KeepsKey = std::function<bool(const std::string& key)>;
RunConfig with_fewer_steps(RunConfig config, int64_t steps, const KeepsKey& keeps);

// The largest round number of steps, at least kFewestSteps, that a new run shortened by with_fewer_steps() does in so
// many seconds. Nothing if the run as it is takes no longer, or has no more than kFewestSteps.
inline constexpr int64_t kFewestSteps = 100;
std::optional<int64_t> steps_within(double seconds, const StepTime& step, const RunConfig& config,
                                    const KeepsKey& keeps);

// The time of a step as predicted without measuring: from stored ceilings, or from typical speeds of the GPUs that are
// here. Nothing without either.
struct Prediction {
  double seconds = 0;
  std::string source;
};
std::optional<Prediction> known_prediction(const Plan& plan, const ResolvedConfig& config);

// Reports the fastest step of a run, in one process or on GPUs: stored ceilings below it are raised.
void note_speed(const ResolvedConfig& config, double gflops);

// The tokenizer of a run that has begun to train; nothing if there is none yet.
std::optional<Tokenizer> run_tokenizer(const RunConfig& config);

// Entries of the vocabulary before the run has a tokenizer: those of the tokenizer that the configuration names, or the
// most that a trained one has.
int64_t expected_vocabulary(const DataConfig& config);

}  // namespace witan::cli
