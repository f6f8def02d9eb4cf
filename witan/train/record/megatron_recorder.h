// Logs a run in Megatron-LM's format (log_format = megatron): averages over log intervals, and when lines are printed.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "witan/data/samples/sample_source.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/train/run/train_state.h"
#include "witan/train/step/engine.h"

namespace witan {

// What set-up has to tell of rank 0, and of the data.
struct SetupReport {
  int64_t parameters = 0;                                  // on the rank
  std::vector<std::vector<megatron_log::Bucket>> buckets;  // of each family: first what is no expert, then experts
  std::vector<megatron_log::RankTimes> times;
};
std::vector<std::vector<megatron_log::Bucket>> describe_buckets(const GradientBuckets& gradients);

class MegatronRecorder {
 public:
  // `print` is given text of one line or more, without the last line feed.
  MegatronRecorder(const ResolvedConfig& config, std::function<void(const std::string&)> print);

  void setup(const SetupReport& report, const SampleSource& samples);
  // A step that took `seconds`. Prints at the end of a log interval: train_iters' last steps need not be one.
  void step(const TrainState& state, const StepResult& result, double seconds);
  // What follows the line of an interval: memory, once, and the timers that ran.
  void interval(const TrainState& state, const megatron_log::Memory& memory,
                const std::vector<megatron_log::RankTimes>& times);
  void evaluation(int64_t step, double loss, const std::vector<megatron_log::RankTimes>& times);
  void saved(int64_t step, const std::string& checkpoint);
  void end(RunEnd why, int64_t step);  // the last that was made

 private:
  struct Sums {
    int64_t iterations = 0, skipped = 0, nan = 0;
    double seconds = 0;
    double loss = 0;                       // this and the next of iterations that were not skipped
    std::vector<double> mtp;               // losses of each module of multi-token prediction
    std::map<std::string, double> router;  // losses of routers, by name
    std::vector<std::pair<std::string, double>> others;
  };
  std::vector<std::pair<std::string, double>> mean_losses() const;

  const ResolvedConfig config_;
  std::function<void(const std::string&)> print_;
  Sums sums_;
  bool memory_told_ = false;
};

}  // namespace witan
