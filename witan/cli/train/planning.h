// What `plan` and `train` share: the plan of a configuration on this machine.
#pragma once

#include <optional>

#include "witan/cli/train/job_ceilings.h"
#include "witan/planner/pages/plan_page.h"
#include "witan/planner/speeds/ceilings_file.h"
#include "witan/planner/speeds/cluster.h"
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

// timing_of() without holding up a start: ceilings of a busy machine are not measured again, but for the peak of
// multiply-adds. Where no ceilings are kept it comes from that, from the rate of copying, and from the shares of both
// that calls usually reach (typical_cpu_speeds()).
// `held_out`: samples that the held-out text has. `job`: of several processes on the CPU, what they measured together;
// kept ceilings say nothing about them, whose cores are not those of this process.
Timing quick_timing_of(const Plan& plan, const ResolvedConfig& config, int64_t done, int64_t held_out,
                       const std::optional<JobCeilings>& job);

// The same of the only process; nothing where it would have to measure GPUs, whose ceilings are kept.
std::optional<Timing> timing_without_writing(const Plan& plan, const ResolvedConfig& config, int64_t done,
                                             int64_t held_out);

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
