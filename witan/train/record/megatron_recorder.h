// Logs a run in Megatron-LM's format (log_format = megatron): averages over log intervals, and when lines are printed.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "witan/data/samples/sample_source.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/train/state/train_state.h"
#include "witan/train/step/engine.h"

namespace witan {

// Figures of the setup on rank 0.
struct SetupReport {
  int64_t parameters = 0;                                  // elements on the rank
  std::vector<std::vector<megatron_log::Bucket>> buckets;  // of the dense parameters, and of the experts
  std::vector<megatron_log::RankTimes> times;
};
std::vector<std::vector<megatron_log::Bucket>> describe_buckets(const GradientBuckets& gradients);

class MegatronRecorder {
 public:
  // `print` receives one or more lines, without the final line feed.
  MegatronRecorder(const ResolvedConfig& config, std::function<void(const std::string&)> print);

  void setup(const SetupReport& report, const SampleSource& samples);
  // Adds a step that took `seconds`. Prints at the end of each full log interval.
  void step(const TrainState& state, const StepResult& result, double seconds);
  // Prints what follows the line of an interval: the memory, once, and the timers.
  void interval(const TrainState& state, const megatron_log::Memory& memory,
                const std::vector<megatron_log::RankTimes>& times);
  void evaluation(int64_t step, double loss, const std::vector<megatron_log::RankTimes>& times);
  void saved(int64_t step, const std::string& checkpoint);
  void end(RunEnd why, int64_t step);  // the last step

 private:
  struct Sums {
    int64_t iterations = 0, skipped = 0, nan = 0;
    double seconds = 0;
    double loss = 0;                       // this and the losses below: over iterations that were not skipped
    std::vector<double> mtp;               // by module of multi-token prediction
    std::map<std::string, double> router;  // router losses by name
    std::vector<std::pair<std::string, double>> others;  // losses that modules and objectives record, by name
  };
  std::vector<std::pair<std::string, double>> mean_losses() const;

  const ResolvedConfig config_;
  std::function<void(const std::string&)> print_;
  Sums sums_;
  bool memory_logged_ = false;
};

}  // namespace witan
