// What `plan` and `train` share: the plan of a configuration on this machine.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "witan/cli/train/job.h"
#include "witan/planner/ceilings_file.h"
#include "witan/planner/cluster.h"
#include "witan/planner/format.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {

// The ceilings that this machine and this program were measured to have.
CeilingsFile ceilings_file();

// The plan of a configuration, for every rank. A tokenizer tells how long prompts of samples are.
Plan plan_of(const ResolvedConfig& config, const Tokenizer* tokenizer);
// Of the longest prompt of a sample; nothing without a tokenizer.
std::optional<int64_t> prompt_tokens(const RunConfig& config, const Tokenizer* tokenizer);

// Bytes that a run so configured may use: of the host, or of the GPU that has the least; 0: unknown.
int64_t usable_memory(const ResolvedConfig& config);
// The same of one GPU, in which this process opens a context.
int64_t usable_memory_of_gpu(int device);

// What is to be said of a run whose threads are more than the cores of this process's machine; nothing where they are
// not, or where ranks are more than cores, which is how layouts are tried out.
std::optional<std::string> too_many_threads(const ParallelConfig& parallel, int cores);

// How long the plan's run takes from step `done` on; measures the ceilings where none are kept.
// Nothing for GPUs that are not here.
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

// The same for a single process that must not write. Nothing if GPUs would have to be measured, since their ceilings
// are kept.
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

// What a step takes by what is known without measuring anything: kept ceilings, or the typical speeds of GPUs that are
// here; and where that comes from. Nothing where there is neither.
struct Prediction {
  double seconds = 0;
  std::string source;
};
std::optional<Prediction> known_prediction(const Plan& plan, const ResolvedConfig& config);

// A run of this config, in one process or on GPUs, had a step of so many GFLOP/s: kept ceilings that are below it are
// raised.
void note_speed(const ResolvedConfig& config, double gflops);

// The tokenizer of a run that has begun to train; nothing where there is none yet.
std::optional<Tokenizer> run_tokenizer(const RunConfig& config);

// Entries of the vocabulary before there is a tokenizer: that of the file that the config names, or as many as a
// trained one has at most.
int64_t expected_vocabulary(const DataConfig& config);

}  // namespace witan::cli
